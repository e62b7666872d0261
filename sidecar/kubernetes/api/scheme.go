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
