package api

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
