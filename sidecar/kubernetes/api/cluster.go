package api

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Cluster is a PostgreSQL cluster.
//
// +kubebuilder:object:root=true
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   ClusterSpec   `json:"spec"`
	Status ClusterStatus `json:"status"`
}

// ClusterList is what a list of Clusters answers.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Cluster `json:"items"`
}

// ClusterSpec is what people ask for.
type ClusterSpec struct {
	Bootstrap             Bootstrap              `json:"bootstrap"`
	Plugins               []Plugin               `json:"plugins"`
	Replica               *Replica               `json:"replica"`
	NodeMaintenanceWindow *NodeMaintenanceWindow `json:"nodeMaintenanceWindow"`
}

// Bootstrap says how the cluster was made.
type Bootstrap struct {
	InitDB       Database `json:"initdb"`
	Recovery     Database `json:"recovery"`
	PgBaseBackup Database `json:"pg_basebackup"`
}

// Database names the application database.
type Database struct {
	Database string `json:"database"`
}

// Plugin is a plugin that the Cluster lists.
type Plugin struct {
	Name string `json:"name"`
	// Enabled is true if it is not given.
	Enabled *bool `json:"enabled"`
}

// Replica is whether the cluster follows another one.
type Replica struct {
	Enabled *bool  `json:"enabled"`
	Primary string `json:"primary"`
	Self    string `json:"self"`
}

// NodeMaintenanceWindow says that nodes are being drained.
type NodeMaintenanceWindow struct {
	InProgress bool `json:"inProgress"`
	// ReusePVC is true if it is not given.
	ReusePVC *bool `json:"reusePVC"`
}

// ClusterStatus is what the operator reports.
type ClusterStatus struct {
	Phase          string      `json:"phase"`
	CurrentPrimary string      `json:"currentPrimary"`
	TargetPrimary  string      `json:"targetPrimary"`
	InstanceNames  []string    `json:"instanceNames"`
	Conditions     []Condition `json:"conditions"`
	// InstancesReportedState is by the names of the pods.
	InstancesReportedState map[string]InstanceReportedState `json:"instancesReportedState"`
}

// Condition is one of the Cluster's conditions.
type Condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	Reason string `json:"reason"`
}

// InstanceReportedState is what an instance reported of itself.
type InstanceReportedState struct {
	IP string `json:"ip"`
}
