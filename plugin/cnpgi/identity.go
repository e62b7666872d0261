package cnpgi

import (
	"context"

	"github.com/cloudnative-pg/cnpg-i/pkg/identity"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Identity is the identity service.
type Identity struct {
	identity.UnimplementedIdentityServer
	// Version is the version of the program.
	Version string
	// Ready reports whether the plugin is ready to serve.
	Ready func() bool
}

// GetPluginMetadata describes the plugin.
func (i *Identity) GetPluginMetadata(
	context.Context, *identity.GetPluginMetadataRequest,
) (*identity.GetPluginMetadataResponse, error) {
	return &identity.GetPluginMetadataResponse{
		Name: contract.PluginName, Version: i.Version, DisplayName: "Scale to zero",
		Description: "Hibernates idle clusters", Vendor: "cnpg-i/scale-to-zero",
		ProjectUrl: "https://github.com/cnpg-i/scale-to-zero", RepositoryUrl: "https://github.com/cnpg-i/scale-to-zero",
		License: "Apache-2.0", LicenseUrl: "https://www.apache.org/licenses/LICENSE-2.0", Maturity: "alpha",
	}, nil
}

// GetPluginCapabilities lists the services that the operator may call.
func (i *Identity) GetPluginCapabilities(
	context.Context, *identity.GetPluginCapabilitiesRequest,
) (*identity.GetPluginCapabilitiesResponse, error) {
	service := func(kind identity.PluginCapability_Service_Type) *identity.PluginCapability {
		return &identity.PluginCapability{Type: &identity.PluginCapability_Service_{Service: &identity.PluginCapability_Service{Type: kind}}}
	}
	return &identity.GetPluginCapabilitiesResponse{Capabilities: []*identity.PluginCapability{
		service(identity.PluginCapability_Service_TYPE_LIFECYCLE_SERVICE),
		service(identity.PluginCapability_Service_TYPE_RECONCILER_HOOKS),
	}}, nil
}

// Probe reports whether the plugin can serve now.
func (i *Identity) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{Ready: i.Ready()}, nil
}
