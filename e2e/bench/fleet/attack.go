package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
	"github.com/cloudnative-pg/cnpg-i/pkg/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	attackers = 10 // addresses
	// heldEach is how many connections each of them holds.
	heldEach  = 400
	honest    = 50
	callEvery = 10 * time.Millisecond
	calls     = 1000
)

// attack has ten addresses hold what they can at every port, and prints whether fifty clients from other addresses wake their
// clusters meanwhile, how long calls of the operator's take, and what memory the plugin has.
func (f *fleet) attack(ctx context.Context, p *process) error {
	f.progress.Say("attack the gateway")
	ports, err := f.ports(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]int32{}
	all := make([]int32, 0, len(ports))
	for name, port := range ports {
		all = append(all, port)
		if cluster, ok := strings.CutSuffix(name, "-rw"); ok && len(wanted) < honest {
			wanted[cluster] = port
		}
	}
	quiet, err := f.callOperator(ctx)
	if err != nil {
		return err
	}
	attacking, end := context.WithCancel(ctx)
	defer end()
	var work sync.WaitGroup
	defer work.Wait()
	defer end()
	var opened atomic.Int64
	for number := range attackers {
		work.Go(func() { press(attacking, fmt.Sprintf("127.0.1.%d", number+1), all, &opened) })
	}
	if err := until(ctx, "the attackers hold what they can", time.Minute, time.Second, func() (bool, error) {
		return opened.Load() > 2*attackers*heldEach, nil
	}); err != nil {
		return err
	}
	took, err := f.wakeHonest(ctx, wanted)
	if err != nil {
		return err
	}
	busy, err := f.callOperator(ctx)
	if err != nil {
		return err
	}
	resident, anonymous, most, err := scenario.Memory(p.command.Process.Pid)
	if err != nil {
		return err
	}
	row("under attack: connections that ten addresses opened; switches of 50 clients' clusters off within (s)", "%d; %s", opened.Load(), took)
	row("... calls of the operator's, quiet and under attack: median, p99 (ms)", "%s; %s", quiet, busy)
	row("... resident memory (MiB)", "%.0f, of it anonymous %.0f; the most so far %.0f", resident, anonymous, most)
	return nil
}

// press opens connections to one port after the other and holds the newest: silent ones, half a startup packet, and complete
// ones, which wake.
func press(ctx context.Context, source string, ports []int32, opened *atomic.Int64) {
	said := []string{"", "\x00\x00\x00\x12\x00\x03", "\x00\x00\x00\x12\x00\x03\x00\x00user\x00app\x00\x00"}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Second}
	held := make([]net.Conn, heldEach)
	for i := 0; ctx.Err() == nil; i++ {
		at := i % len(held)
		if held[at] != nil {
			_ = held[at].Close()
		}
		conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", ports[i%len(ports)]))
		if held[at] = conn; err != nil {
			held[at] = nil
			continue
		}
		opened.Add(1)
		_, _ = conn.Write([]byte(said[i%len(said)]))
		if i > len(held) {
			time.Sleep(10 * time.Millisecond) // the attackers share the machine with what they attack
		}
	}
	for _, conn := range held {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

// wakeHonest connects to each of the clusters from an address of its own, and returns how long it took until every switch was
// off.
func (f *fleet) wakeHonest(ctx context.Context, wanted map[string]int32) (string, error) {
	changes, err := f.switches(ctx)
	if err != nil {
		return "", err
	}
	defer changes.Stop()
	began, number := time.Now(), 0
	waiting := map[string]bool{}
	for cluster, port := range wanted {
		number++
		asleep, err := f.asleep(ctx, cluster)
		if err != nil {
			return "", err
		}
		waiting[cluster] = asleep // the attackers may have woken it
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, byte(number))}}
		conn, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return "", fmt.Errorf("connect to the gateway: %w", err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("\x00\x00\x00\x12\x00\x03\x00\x00user\x00app\x00\x00")); err != nil {
			return "", fmt.Errorf("ask for a session: %w", err)
		}
	}
	limited, cancel := context.WithTimeout(ctx, wakeWithin)
	defer cancel()
	for {
		left := 0
		for _, asleep := range waiting {
			if asleep {
				left++
			}
		}
		if left == 0 {
			return fmt.Sprintf("%.2f", time.Since(began).Seconds()), nil
		}
		select {
		case <-limited.Done():
			return fmt.Sprintf("more than %s: %d of %d clusters sleep", wakeWithin, left, len(wanted)), nil
		case change, open := <-changes.ResultChan():
			if !open {
				return "", errors.New("the watch ended")
			}
			object, ok := change.Object.(*metav1.PartialObjectMetadata)
			if ok && change.Type == watch.Modified && object.Annotations[hibernation] == "" {
				delete(waiting, object.Name)
			}
		}
	}
}

// asleep reports whether the cluster's switch is on.
func (f *fleet) asleep(ctx context.Context, name string) (bool, error) {
	for i := range f.clusters {
		if key := f.cluster(i); key.Name == name {
			var c cnpgv1.Cluster
			if err := f.admin.Get(ctx, key, &c); err != nil {
				return false, fmt.Errorf("read Cluster %s: %w", key, err)
			}
			return c.Annotations[hibernation] != "", nil
		}
	}
	return false, fmt.Errorf("there is no cluster %q", name)
}

// callOperator calls the plugin over the operator's socket, one call at a time, and returns how long that took.
func (f *fleet) callOperator(ctx context.Context) (string, error) {
	socket := filepath.Join(f.folder, "socket", "cnpg-i-scale-to-zero.xata.io")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", fmt.Errorf("make a client of the plugin: %w", err)
	}
	defer func() { _ = conn.Close() }()
	client := identity.NewIdentityClient(conn)
	times := make([]time.Duration, 0, calls)
	for range calls {
		began := time.Now()
		if _, err := client.Probe(ctx, &identity.ProbeRequest{}); err != nil {
			return "", fmt.Errorf("call the plugin: %w", err)
		}
		times = append(times, time.Since(began))
		if err := wait(ctx, callEvery); err != nil {
			return "", err
		}
	}
	slices.Sort(times)
	milliseconds := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	return fmt.Sprintf("%.2f, %.2f", milliseconds(times[len(times)/2]), milliseconds(times[len(times)*99/100])), nil
}
