package main

import (
	"context"

	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
)

// itself is the identity service; the two parts offer different services under one name.
type itself struct {
	identity.UnimplementedIdentityServer
	name   string
	offers []identity.PluginCapability_Service_Type
}

// GetPluginMetadata tells the name.
func (i *itself) GetPluginMetadata(context.Context, *identity.GetPluginMetadataRequest) (*identity.GetPluginMetadataResponse, error) {
	return &identity.GetPluginMetadataResponse{Name: i.name, Version: version}, nil
}

// GetPluginCapabilities tells what this part offers.
func (i *itself) GetPluginCapabilities(context.Context, *identity.GetPluginCapabilitiesRequest) (*identity.GetPluginCapabilitiesResponse, error) {
	answer := &identity.GetPluginCapabilitiesResponse{}
	for _, offer := range i.offers {
		answer.Capabilities = append(answer.Capabilities, &identity.PluginCapability{
			Type: &identity.PluginCapability_Service_{Service: &identity.PluginCapability_Service{Type: offer}},
		})
	}
	return answer, nil
}

// Probe says that it serves.
func (i *itself) Probe(context.Context, *identity.ProbeRequest) (*identity.ProbeResponse, error) {
	return &identity.ProbeResponse{Ready: true}, nil
}
