package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cloudnative-pg/cnpg-i/pkg/wal"
)

// storeName is the directory of the store, beside that of the data.
const storeName = "neighbour"

// store is the directory in which WAL and backups are kept.
type store string

// keep writes a file, which is there only when it is complete.
func (s store) keep(name string, content []byte) error {
	path := filepath.Join(string(s), name)
	if err := os.WriteFile(path+".part", content, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}

// archiver is the WAL service.
type archiver struct {
	wal.UnimplementedWALServer
	store store
}

// GetCapabilities says that it archives.
func (a *archiver) GetCapabilities(context.Context, *wal.WALCapabilitiesRequest) (*wal.WALCapabilitiesResult, error) {
	return &wal.WALCapabilitiesResult{Capabilities: []*wal.WALCapability{{
		Type: &wal.WALCapability_Rpc{Rpc: &wal.WALCapability_RPC{Type: wal.WALCapability_RPC_TYPE_ARCHIVE_WAL}},
	}}}, nil
}

// Archive keeps one file.
func (a *archiver) Archive(_ context.Context, request *wal.WALArchiveRequest) (*wal.WALArchiveResult, error) {
	content, err := os.ReadFile(request.GetSourceFileName())
	if err != nil {
		return nil, fmt.Errorf("read the WAL: %w", err)
	}
	if err := a.store.keep(filepath.Base(request.GetSourceFileName()), content); err != nil {
		return nil, err
	}
	return &wal.WALArchiveResult{}, nil
}
