package main

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
	"github.com/cnpg-i/scale-to-zero/sidecar/control"
	"github.com/cnpg-i/scale-to-zero/sidecar/doze"
	"github.com/cnpg-i/scale-to-zero/sidecar/kubernetes"
	"github.com/cnpg-i/scale-to-zero/sidecar/monitor"
	"github.com/cnpg-i/scale-to-zero/sidecar/postgres"
	"github.com/cnpg-i/scale-to-zero/sidecar/process"
	"github.com/cnpg-i/scale-to-zero/sidecar/server"
	"github.com/cnpg-i/scale-to-zero/sidecar/sockets"
)

const (
	// partRetry is the wait before a failed part is restarted.
	partRetry = 5 * time.Second
	// trimEvery is how often memory is given back. A garbage collection maps much of the program, and each trim begins
	// with one. At rest no other occurs between two trims: the runtime starts its own only after two minutes, or at 4
	// MiB of heap.
	trimEvery = 30 * time.Second
)

// work runs the worker until the context ends. It returns earlier only if the settings are wrong: then the supervisor
// restarts it every few seconds, which repeats the error, and PostgreSQL keeps running.
func work(ctx context.Context, lookup func(string) string, output io.Writer) int {
	runtime.GOMAXPROCS(1) // each further one has its own caches, and the container's limit is a tenth of a CPU
	s, err := readSettings(lookup)
	logger := slog.New(slog.NewJSONHandler(output, &slog.HandlerOptions{Level: s.level})).
		With("namespace", s.identity.Namespace, "cluster", s.identity.Cluster, "pod", s.identity.Pod)
	if err != nil {
		logger.Error("invalid settings", "error", err.Error())
		return 2
	}
	endpoint, err := kubernetes.InCluster(lookup)
	if err != nil {
		logger.Error("cannot find the API server", "error", err.Error())
		return 1
	}
	client, err := kubernetes.Connect(endpoint, s.identity, logger)
	if err != nil {
		logger.Error("cannot make a client of the API server", "error", err.Error())
		return 1
	}
	metrics := server.NewMetrics(s.identity.Cluster, version, time.Now)
	clientAddrs := monitor.NewClientAddrs()
	database := postgres.NewServer(s.socketDirectory, s.databasePort, clientAddrs.AddProbe)
	watched := monitor.New(monitor.Parts{
		Sampler: postgres.NewSampler(database), Server: database, ClientAddrs: clientAddrs,
		Checkpoints: monitor.NewCheckpointFile(checkpointFile, s.identity.PodUID), Observer: metrics, Logger: logger,
		OpenEvents: func() (monitor.SocketEvents, error) { return sockets.Listen(s.databasePort) },
		Listen: func(name string, notify func(postgres.Notification), failed func(error)) monitor.Listener {
			return postgres.NewListener(database, name, notify, failed)
		},
	})
	parts := control.Parts{
		Monitor: watched, Kubernetes: client, Siblings: control.NewSiblingClient(s.identity.Cluster, contract.SidecarPort),
		Marker: s.marker, Observer: metrics, Counts: whatIfFile(countsFile), Logger: logger,
		Pod: s.identity.Pod, PodUID: s.identity.PodUID,
		OpenTerminator: func(ctx context.Context) (control.Terminator, error) { return database.Terminator(ctx) },
		Instance:       instance{Observer: doze.NewObserver(s.socketDirectory, s.databasePort, database.Accepts), Server: database},
	}
	var running sync.WaitGroup
	if s.readiness {
		requests := doze.NewResizer(client, s.identity.PodUID, s.dozeMemory, logger)
		parts.Readiness, parts.Requests = process.NewReadiness(readinessSocket), requests
		running.Go(func() { requests.Run(ctx) })
	}
	loop := control.New(parts)
	logger.Info("the worker has started", "version", version)
	handler := metrics.Handler(s.identity.Cluster, s.identity.Pod, clientAddrs, loop, database.PasswordSet)
	running.Go(func() { loop.Run(ctx) })
	running.Go(func() { client.Watch(ctx, loop.Deliver) })
	running.Go(func() {
		keep(ctx, logger, "pages", func() error {
			return server.Serve(ctx, ":"+strconv.Itoa(contract.SidecarPort), handler, metrics.IsInstance)
		})
	})
	running.Go(func() {
		keep(ctx, logger, "drain", func() error { return server.ServeDrain(ctx, drainSocket, loop.Drain) })
	})
	running.Go(func() { trimMemory(ctx, logger) })
	running.Wait()
	return 0
}

// instance is PostgreSQL, as the instance manager runs it.
type instance struct {
	*doze.Observer
	*postgres.Server
}

// trimMemory gives memory back periodically, until the context ends or it fails.
func trimMemory(ctx context.Context, logger *slog.Logger) {
	for process.Pause(ctx, trimEvery) {
		if err := process.TrimMemory(); err != nil {
			logger.Warn("cannot release the pages of the program", "error", err.Error())
			return
		}
	}
}

// keep restarts a part whenever it fails: a failing part must not stop the others.
func keep(ctx context.Context, logger *slog.Logger, part string, run func() error) {
	for {
		err := run()
		if ctx.Err() != nil {
			return
		}
		logger.Error("a server of the worker failed and is started again", "failed", part, "error", err.Error())
		if !process.Pause(ctx, partRetry) {
			return
		}
	}
}
