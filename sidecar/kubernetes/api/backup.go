package api

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
