package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudnative-pg/cnpg-i/pkg/backup"
)

// takes is the parameter of a Backup that says how long it takes.
const takes = "takes"

// backuper is the backup service.
type backuper struct {
	backup.UnimplementedBackupServer
	store store
}

// GetCapabilities says that it takes backups.
func (b *backuper) GetCapabilities(context.Context, *backup.BackupCapabilitiesRequest) (*backup.BackupCapabilitiesResult, error) {
	return &backup.BackupCapabilitiesResult{Capabilities: []*backup.BackupCapability{{
		Type: &backup.BackupCapability_Rpc{Rpc: &backup.BackupCapability_RPC{Type: backup.BackupCapability_RPC_TYPE_BACKUP}},
	}}}, nil
}

// Backup keeps what it was asked for, and takes its time. It opens no session: what a test sees of it is the Backup alone.
func (b *backuper) Backup(ctx context.Context, request *backup.BackupRequest) (*backup.BackupResult, error) {
	started := time.Now()
	long, err := time.ParseDuration(request.GetParameters()[takes])
	if err != nil {
		return nil, fmt.Errorf("read the parameter %q: %w", takes, err)
	}
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, fmt.Errorf("take the backup: %w", context.Cause(ctx))
	}
	id := started.UTC().Format("20060102T150405")
	if err := b.store.keep("backup-"+id, request.GetBackupDefinition()); err != nil {
		return nil, err
	}
	return &backup.BackupResult{BackupId: id, BackupName: id, StartedAt: started.Unix(), StoppedAt: time.Now().Unix(), Online: true}, nil
}
