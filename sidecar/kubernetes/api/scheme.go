package api

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// NewScheme knows the kinds of CloudNativePG under the group and version that the operator was built with, and Pods.
func NewScheme(version schema.GroupVersion) *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(version, &Cluster{}, &ClusterList{}, &Backup{}, &BackupList{}, &ScheduledBackup{}, &ScheduledBackupList{})
	metav1.AddToGroupVersion(scheme, version)
	scheme.AddKnownTypes(schema.GroupVersion{Version: "v1"}, &Pod{})
	return scheme
}
