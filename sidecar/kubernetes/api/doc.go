// Package api holds the kinds of CloudNativePG and Kubernetes that the sidecar reads, reduced to the fields that it needs: what is
// not named here is not decoded. Those of CloudNativePG are registered under the group and version of the cluster's operator.
package api
