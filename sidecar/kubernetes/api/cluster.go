package api

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
