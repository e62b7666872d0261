// Package identity tells the operator who the plugin is, what it can do, and whether it can do it now.
package identity

import (
	"context"

	"github.com/cloudnative-pg/cnpg-i/pkg/identity"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Server is the identity service.
type Server struct {
	identity.UnimplementedIdentityServer
	// Version is that of the program.
	Version string
	// Ready reports whether the plugin really can serve.
	Ready func() bool
	// Validates declares the Operator service.
	Validates bool
}

// GetPluginMetadata tells who the plugin is.
func (s *Server) GetPluginMetadata(context.Context, *identity.GetPluginMetadataRequest) (*identity.GetPluginMetadataResponse, error) {
	return &identity.GetPluginMetadataResponse{
		Name: contract.PluginName, Version: s.Version, DisplayName: "Scale to zero",
		Description: "Hibernates clusters that nobody uses", Vendor: "cnpg-i/scale-to-zero",
		ProjectUrl: "https://github.com/cnpg-i/scale-to-zero", RepositoryUrl: "https://github.com/cnpg-i/scale-to-zero",
		License: "Apache-2.0", LicenseUrl: "https://www.apache.org/licenses/LICENSE-2.0", Maturity: "alpha",
	}, nil
}

// GetPluginCapabilities lists the services that the operator may call.
func (s *Server) GetPluginCapabilities(context.Context, *identity.GetPluginCapabilitiesRequest) (*identity.GetPluginCapabilitiesResponse, error) {
	service := func(kind identity.PluginCapability_Service_Type) *identity.PluginCapability {
		return &identity.PluginCapability{Type: &identity.PluginCapability_Service_{Service: &identity.PluginCapability_Service{Type: kind}}}
	}
	capabilities := []*identity.PluginCapability{
		service(identity.PluginCapability_Service_TYPE_LIFECYCLE_SERVICE),
		service(identity.PluginCapability_Service_TYPE_RECONCILER_HOOKS),
	}
	if s.Validates {
		capabilities = append(capabilities, service(identity.PluginCapability_Service_TYPE_OPERATOR_SERVICE))
	}
	return &identity.GetPluginCapabilitiesResponse{Capabilities: capabilities}, nil
}

// Probe reports whether the plugin can serve now.
func (s *Server) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{Ready: s.Ready()}, nil
}
