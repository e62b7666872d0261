package main

import (
	"context"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/control"
	"github.com/cnpg-i/scale-to-zero/sidecar/evidence"
	"github.com/cnpg-i/scale-to-zero/sidecar/exporter"
	"github.com/cnpg-i/scale-to-zero/sidecar/farewell"
	"github.com/cnpg-i/scale-to-zero/sidecar/introduction"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/server"
	"github.com/cnpg-i/scale-to-zero/sidecar/siblings"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

const (
	// collectAt makes the garbage collector keep the heap small: at rest there is next to nothing to do.
	collectAt = 25
	// partRetry is the wait before a part that failed is started again.
	partRetry = 5 * time.Second
)

// work runs the worker until the context ends. Only settings that are wrong make it return before: the supervisor then says
// so again every few seconds, and PostgreSQL is served all the while.
func work(ctx context.Context, lookup func(string) string, output io.Writer) int {
	debug.SetGCPercent(collectAt)
	s, err := readSettings(lookup)
	logger := slog.New(slog.NewJSONHandler(output, &slog.HandlerOptions{Level: s.level})).
		With("namespace", s.identity.Namespace, "cluster", s.identity.Cluster, "pod", s.identity.Pod)
	if err != nil {
		logger.Error("the settings are wrong", "error", err.Error())
		return 2
	}
	endpoint, err := kubernetes.InCluster(lookup)
	if err != nil {
		logger.Error("the API server cannot be found", "error", err.Error())
		return 1
	}
	client, err := kubernetes.Connect(endpoint, s.identity, logger)
	if err != nil {
		logger.Error("no client can be made", "error", err.Error())
		return 1
	}
	metrics := server.NewMetrics(s.identity.Cluster, version, time.Now)
	introductions := introduction.NewBook()
	loop := control.New(control.Parts{
		Sampler: postgres.NewSampler(s.server), Server: s.server, Kubernetes: client, Observer: metrics, Logger: logger,
		Siblings: siblings.NewClient(s.identity.Cluster, s.port), Evidence: evidence.NewStore(evidenceFile), Introductions: introductions, Farewell: farewell.Note{Path: s.farewell},
		Exporter: exporter.New(),
		Pod:      s.identity.Pod, PodUID: s.identity.PodUID,
		Listen: func(database string, notify func(postgres.Notification), failed func(error)) control.Listener {
			return postgres.NewListener(s.server, database, notify, failed)
		},
		OpenTerminator: func(ctx context.Context) (control.Terminator, error) { return s.server.Terminator(ctx) },
		OpenReports:    func() (control.Reports, error) { return sockets.Listen(s.server.Port) },
	})
	logger.Info("the worker has started", "version", version)
	handler := metrics.Handler(s.identity.Cluster, s.identity.Pod, introductions)
	var parts sync.WaitGroup
	parts.Go(func() { loop.Run(ctx) })
	parts.Go(func() { client.Watch(ctx, loop.See) })
	parts.Go(func() {
		keep(ctx, logger, "pages", func() error { return server.Serve(ctx, s.address, handler) })
	})
	parts.Go(func() {
		keep(ctx, logger, "drain", func() error { return server.ServeDrain(ctx, drainSocket, loop.Drain) })
	})
	parts.Wait()
	return 0
}

// keep runs a part again whenever it fails: one that cannot work must not take the others with it.
func keep(ctx context.Context, logger *slog.Logger, part string, run func() error) {
	for ctx.Err() == nil {
		err := run()
		if ctx.Err() != nil {
			return
		}
		logger.Error("a part failed and is started again", "failed", part, "error", err.Error())
		timer := time.NewTimer(partRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}
