package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	honest    = 50
	callEvery = 10 * time.Millisecond
	calls     = 1000
)

// attack has ten addresses hold as many connections as they can at every port. It prints how soon clients from fifty other addresses wake
// their clusters, how long the operator's calls take, and how much memory the plugin has. Calls of a bystander, a process that is not
// attacked, show what the load on the API server and the kernel costs.
func (f *fleet) attack(ctx context.Context) (err error) {
	p, err := f.another(ctx, "scale-to-zero-attacked", "plugin-attacked.log")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.kill(ctx, p)) }()
	stop, err := f.startBystander(ctx)
	if err != nil {
		return err
	}
	defer stop()
	f.progress.Say("attack the gateway")
	ports, err := f.ports(ctx)
	if err != nil {
		return err
	}
	quiet, err := f.callBoth(ctx)
	if err != nil {
		return err
	}
	opened, end, err := f.startAttackers(ctx, slices.Collect(maps.Values(ports)))
	if err != nil {
		return err
	}
	defer end()
	if err := until(ctx, "the attackers hold what they can", time.Minute, time.Second, func() (bool, error) {
		return opened.Load() > 2*attackers*heldEach, nil
	}); err != nil {
		return err
	}
	took, err := f.wakeHonest(ctx, ports)
	if err != nil {
		return err
	}
	before, err := scenario.ProcessorTime(p.command.Process.Pid)
	if err != nil {
		return err
	}
	came := opened.Load()
	busy, err := f.callBoth(ctx)
	if err != nil {
		return err
	}
	after, err := scenario.ProcessorTime(p.command.Process.Pid)
	if err != nil {
		return err
	}
	perConnection := float64((after - before).Microseconds()) / float64(opened.Load()-came)
	resident, anonymous, most, err := scenario.Memory(p.command.Process.Pid)
	if err != nil {
		return err
	}
	row("under attack: connections that ten addresses opened; hibernation of 50 clients' clusters off within (s)", "%d; %s", opened.Load(), took)
	for i, what := range []string{"calls of the operator's", "calls of a bystander"} {
		row("... "+what+", quiet and under attack: median, p99 (ms)", "%s; %s", quiet[i], busy[i])
	}
	row("... processor time for each of the attackers' connections (us)", "%.0f", perConnection)
	row("... resident memory (MiB)", "%.0f, of it anonymous %.0f; the most so far %.0f", resident, anonymous, most)
	return nil
}

// wakeHonest connects to fifty clusters, to each from an address of its own, and returns how long it took until the switches of
// those that slept were off.
func (f *fleet) wakeHonest(ctx context.Context, ports map[string]int32) (string, error) {
	changes, err := f.watchClusters(ctx)
	if err != nil {
		return "", err
	}
	defer changes.Stop()
	began, wanted := time.Now(), map[string]bool{}
	for i := range min(honest, f.clusters) {
		var c cnpgv1.Cluster
		if err := f.admin.Get(ctx, f.cluster(i), &c); err != nil {
			return "", fmt.Errorf("read Cluster %s: %w", f.cluster(i), err)
		}
		wanted[c.Name] = c.Annotations[scenario.Hibernation] != "" // the attackers may have woken it
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, byte(i+1))}}
		conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", ports[c.Name+"-rw"]))
		if err != nil {
			return "", fmt.Errorf("connect to the gateway: %w", err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("\x00\x00\x00\x12\x00\x03\x00\x00user\x00app\x00\x00")); err != nil {
			return "", fmt.Errorf("ask for a session: %w", err)
		}
	}
	maps.DeleteFunc(wanted, func(_ string, asleep bool) bool { return !asleep })
	_, err = awaitWoken(ctx, changes, wanted, wakeWithin)
	return fmt.Sprintf("%.2f", time.Since(began).Seconds()), err
}

// callBoth calls the plugin over the operator's socket and the bystander over its own, in turn and one call at a time, and returns
// how long that took.
func (f *fleet) callBoth(ctx context.Context) (took [2]string, err error) {
	var clients [2]identity.IdentityClient
	var times [2][]time.Duration
	for i, socket := range []string{filepath.Join(f.folder, "socket", scenario.PluginName), f.bystanderSocket()} {
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return took, fmt.Errorf("make a client of %s: %w", socket, err)
		}
		defer func() { _ = conn.Close() }()
		clients[i] = identity.NewIdentityClient(conn)
	}
	for range calls {
		for i, client := range clients {
			began := time.Now()
			if _, err := client.Probe(ctx, &identity.ProbeRequest{}, grpc.WaitForReady(true)); err != nil {
				return took, fmt.Errorf("call the plugin or the bystander: %w", err)
			}
			times[i] = append(times[i], time.Since(began))
			if err := scenario.Rest(ctx, callEvery); err != nil {
				return took, err
			}
		}
	}
	milliseconds := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	for i, times := range times {
		slices.Sort(times)
		took[i] = fmt.Sprintf("%.2f, %.2f", milliseconds(times[len(times)/2]), milliseconds(times[len(times)*99/100]))
	}
	return took, nil
}
