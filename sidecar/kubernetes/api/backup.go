package api

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterReference names the cluster that a Backup or a ScheduledBackup is of.
type ClusterReference struct {
	Name string `json:"name"`
}

// Backup is one backup of a cluster.
//
// +kubebuilder:object:root=true
type Backup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   BackupSpec   `json:"spec"`
	Status BackupStatus `json:"status"`
}

// BackupList is a page of Backups.
//
// +kubebuilder:object:root=true
type BackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Backup `json:"items"`
}

// BackupSpec says what is backed up.
type BackupSpec struct {
	Cluster ClusterReference `json:"cluster"`
}

// BackupStatus says how far the backup has got.
type BackupStatus struct {
	Phase string `json:"phase"`
}

// ScheduledBackup is a schedule of backups.
//
// +kubebuilder:object:root=true
type ScheduledBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec ScheduledBackupSpec `json:"spec"`
}

// ScheduledBackupList is a page of ScheduledBackups.
//
// +kubebuilder:object:root=true
type ScheduledBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ScheduledBackup `json:"items"`
}

// ScheduledBackupSpec says what is backed up, and whether the schedule is suspended.
type ScheduledBackupSpec struct {
	Cluster ClusterReference `json:"cluster"`
	Suspend bool             `json:"suspend"`
}
