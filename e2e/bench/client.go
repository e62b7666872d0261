package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

// database is how the application's user reaches the primary of a cluster from this machine.
type database struct{ address, password string }

func databaseOf(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (database, error) {
	var secret corev1.Secret
	if err := kube.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-app"}, &secret); err != nil {
		return database{}, fmt.Errorf("read the application's Secret: %w", err)
	}
	var s corev1.Service
	if err := kube.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Name + "-rw"}, &s); err != nil {
		return database{}, fmt.Errorf("read the Service: %w", err)
	}
	return database{address: s.Spec.ClusterIP, password: string(secret.Data["password"])}, nil
}

// connect opens a session; mode is libpq's sslmode.
func (d database) connect(ctx context.Context, mode string) (*pgx.Conn, error) {
	return d.open(ctx, "sslmode="+mode+"&connect_timeout=5")
}

// reachable waits until a session can be opened: kube-proxy learns of a ready instance a little later than the Cluster's status.
func (d database) reachable(ctx context.Context) error {
	for deadline := time.Now().Add(time.Minute); ; {
		conn, err := d.connect(ctx, "disable")
		if err == nil {
			return conn.Close(ctx)
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// patient opens a session, however long that takes.
func (d database) patient(ctx context.Context) (*pgx.Conn, error) {
	return d.open(ctx, "sslmode=require")
}

func (d database) open(ctx context.Context, settings string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://app:%s@%s:5432/app?%s", d.password, d.address, settings))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

func primaryOf(ctx context.Context, kube *scenario.Kubernetes, c *cnpgv1.Cluster) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := kube.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: c.Status.CurrentPrimary}, pod); err != nil {
		return nil, fmt.Errorf("read the primary's pod: %w", err)
	}
	return pod, nil
}
