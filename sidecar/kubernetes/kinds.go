package kubernetes

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// newScheme knows the kinds of CloudNativePG under the group and version that the operator was built with, and Pods.
func newScheme(version schema.GroupVersion) *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(version, &Cluster{}, &ClusterList{}, &Backup{}, &BackupList{}, &ScheduledBackup{},
		&ScheduledBackupList{})
	metav1.AddToGroupVersion(scheme, version)
	scheme.AddKnownTypes(schema.GroupVersion{Version: "v1"}, &Pod{})
	return scheme
}

// Cluster is a PostgreSQL cluster.
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   ClusterSpec   `json:"spec"`
	Status ClusterStatus `json:"status"`
}

// ClusterList is a list of Clusters.
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Cluster `json:"items"`
}

// ClusterSpec is the specification of a Cluster.
type ClusterSpec struct {
	Bootstrap             Bootstrap             `json:"bootstrap"`
	Plugins               []Plugin              `json:"plugins"`
	Replica               *Replica              `json:"replica"`
	NodeMaintenanceWindow NodeMaintenanceWindow `json:"nodeMaintenanceWindow"`
	// SwitchoverDelay is in seconds; zero for the default of an hour.
	SwitchoverDelay int32 `json:"switchoverDelay"`
}

// Bootstrap is how the cluster was created.
type Bootstrap struct {
	InitDB       Database `json:"initdb"`
	Recovery     Database `json:"recovery"`
	PgBaseBackup Database `json:"pg_basebackup"`
}

// Database names the application database.
type Database struct {
	Database string `json:"database"`
}

// Plugin is a plugin listed in the Cluster.
type Plugin struct {
	Name string `json:"name"`
	// Enabled defaults to true.
	Enabled *bool `json:"enabled"`
}

// Replica configures the cluster as a replica of another one.
type Replica struct {
	Enabled *bool  `json:"enabled"`
	Primary string `json:"primary"`
	Self    string `json:"self"`
}

// NodeMaintenanceWindow is set while nodes are being drained.
type NodeMaintenanceWindow struct {
	InProgress bool `json:"inProgress"`
}

// ClusterStatus is the state that the operator reports.
type ClusterStatus struct {
	Phase          string `json:"phase"`
	CurrentPrimary string `json:"currentPrimary"`
	TargetPrimary  string `json:"targetPrimary"`
	// Image is the image of the instances.
	Image string `json:"image"`
	// CurrentPrimaryTimestamp is when CurrentPrimary was last written.
	CurrentPrimaryTimestamp string      `json:"currentPrimaryTimestamp"`
	InstanceNames           []string    `json:"instanceNames"`
	Conditions              []Condition `json:"conditions"`
	// CloudNativePGCommitHash is that of the operator, and PluginStatus has the versions of its plugins.
	CloudNativePGCommitHash string         `json:"cloudNativePGCommitHash"`
	PluginStatus            []PluginStatus `json:"pluginStatus"`
	// InstancesStatus has the names of the pods, keyed by their states.
	InstancesStatus map[string][]string `json:"instancesStatus"`
	// InstancesReportedState is keyed by pod name.
	InstancesReportedState map[string]InstanceReportedState `json:"instancesReportedState"`
}

// Condition is a condition of a Cluster or a Pod.
type Condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
}

// PluginStatus is a plugin that the operator has loaded for the Cluster.
type PluginStatus struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// InstanceReportedState is the state that an instance reported.
type InstanceReportedState struct {
	IP string `json:"ip"`
}

// ClusterReference names the cluster of a Backup or ScheduledBackup.
type ClusterReference struct {
	Name string `json:"name"`
}

// Backup is one backup of a cluster.
type Backup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   BackupSpec   `json:"spec"`
	Status BackupStatus `json:"status"`
}

// BackupList is a page of Backups.
type BackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Backup `json:"items"`
}

// BackupSpec is the specification of a Backup.
type BackupSpec struct {
	Cluster ClusterReference `json:"cluster"`
}

// BackupStatus is the progress of a Backup.
type BackupStatus struct {
	Phase string `json:"phase"`
}

// ScheduledBackup is a schedule of backups.
type ScheduledBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec ScheduledBackupSpec `json:"spec"`
}

// ScheduledBackupList is a page of ScheduledBackups.
type ScheduledBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ScheduledBackup `json:"items"`
}

// ScheduledBackupSpec is the specification of a ScheduledBackup.
type ScheduledBackupSpec struct {
	Cluster ClusterReference `json:"cluster"`
	Suspend bool             `json:"suspend"`
}

// Pod is a pod of Kubernetes.
type Pod struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   PodSpec   `json:"spec"`
	Status PodStatus `json:"status"`
}

// PodSpec is the specification of a Pod.
type PodSpec struct {
	Containers []Container `json:"containers"`
}

// Container is a container of a Pod.
type Container struct {
	Name         string         `json:"name"`
	Resources    Resources      `json:"resources"`
	ResizePolicy []ResizePolicy `json:"resizePolicy"`
}

// Resources are the requests and limits of a container, by the name of the resource.
type Resources struct {
	Requests map[string]resource.Quantity `json:"requests"`
	Limits   map[string]resource.Quantity `json:"limits"`
}

// ResizePolicy says whether a change of a resource restarts the container.
type ResizePolicy struct {
	ResourceName  string `json:"resourceName"`
	RestartPolicy string `json:"restartPolicy"`
}

// PodStatus is the state of a Pod.
type PodStatus struct {
	QOSClass   string      `json:"qosClass"`
	Conditions []Condition `json:"conditions"`
}

// A copy shares what its original refers to: nobody changes an object that was read.

// DeepCopyObject returns a copy.
func (c Cluster) DeepCopyObject() runtime.Object { return &c }

// DeepCopyObject returns a copy.
func (l ClusterList) DeepCopyObject() runtime.Object { return &l }

// DeepCopyObject returns a copy.
func (b Backup) DeepCopyObject() runtime.Object { return &b }

// DeepCopyObject returns a copy.
func (l BackupList) DeepCopyObject() runtime.Object { return &l }

// DeepCopyObject returns a copy.
func (b ScheduledBackup) DeepCopyObject() runtime.Object { return &b }

// DeepCopyObject returns a copy.
func (l ScheduledBackupList) DeepCopyObject() runtime.Object { return &l }

// DeepCopyObject returns a copy.
func (p Pod) DeepCopyObject() runtime.Object { return &p }
