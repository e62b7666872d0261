package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// cost is what a test has taken of the processors' time, in seconds: what the pods of its namespaces did, and an equal share, among the
// tests that ran, of everything else that this machine did.
type cost struct {
	Test    string  `json:"test"`
	Seconds float64 `json:"seconds"`
	Pods    float64 `json:"pods"`
	Shared  float64 `json:"shared"`
	began   time.Time
	stories int // that have not ended
}

// meter has the counters of control groups, in seconds, as they were read last.
var meter = struct {
	sync.Mutex
	running  map[string]*cost
	users    map[string]string // the tests that use namespaces
	homes    map[string]string // the namespaces of pods, by the names of their control groups
	counters map[string]float64
}{running: map[string]*cost{}, users: map[string]string{}, homes: map[string]string{}, counters: map[string]float64{}}

// meters reads the counters every second, if COST names the file to which every test appends a line of JSON at its end. A cluster that was
// not made here has no control groups on this machine.
func meters(ctx context.Context) {
	if os.Getenv("COST") == "" {
		return
	}
	machine := "/sys/fs/cgroup"
	if _, err := os.Stat(machine + "/cpuacct"); err == nil { // version 1
		machine += "/cpuacct"
	}
	go func() {
		for ; ; time.Sleep(time.Second) {
			readMeter(ctx, machine, machine+"/s2z"+os.Getenv("SCALE_TO_ZERO_NETWORK")+"/kubepods")
		}
	}()
}

// readMeter attributes the time used since the last reading to the running tests.
func readMeter(ctx context.Context, machine, pods string) {
	meter.Lock()
	defer meter.Unlock()
	_, begun := meter.counters[machine]
	shared := used(machine, begun)
	guaranteed, _ := filepath.Glob(pods + "/pod*")
	others, _ := filepath.Glob(pods + "/*/pod*")
	for _, group := range append(guaranteed, others...) {
		took := used(group, begun)
		if c := meter.running[meter.users[homeOf(ctx, filepath.Base(group))]]; c != nil {
			c.Pods, shared = c.Pods+took, shared-took
		}
	}
	for _, c := range meter.running {
		c.Shared += max(0, shared) / float64(len(meter.running))
	}
}

// used returns how many seconds a control group has used since the last time: all that it has, if it is new.
func used(group string, begun bool) float64 {
	before, known := meter.counters[group]
	now, unit := 0.0, 1e9
	if text, err := os.ReadFile(group + "/cpuacct.usage"); err == nil {
		_, _ = fmt.Sscanf(string(text), "%f", &now)
	} else if text, err := os.ReadFile(group + "/cpu.stat"); err == nil { // version 2
		unit = 1e6
		_, _ = fmt.Sscanf(string(text), "usage_usec %f", &now)
	}
	meter.counters[group] = now / unit
	if !known && !begun {
		return 0
	}
	return max(0, now/unit-before)
}

// homeOf returns the namespace of the pod of a control group.
func homeOf(ctx context.Context, group string) string {
	if _, known := meter.homes[group]; !known {
		meter.homes[group] = "" // one that has gone is not looked for again
		var pods corev1.PodList
		_ = kube.List(ctx, &pods)
		for _, pod := range pods.Items {
			meter.homes["pod"+string(pod.UID)] = pod.Namespace
		}
	}
	return meter.homes[group]
}

// spends counts what the pods of a namespace use as the test's, until the test ends.
func spends(t *testing.T, namespace string) {
	t.Helper()
	meter.Lock()
	defer meter.Unlock()
	test, _, _ := strings.Cut(t.Name(), "/")
	c := meter.running[test]
	if c == nil {
		c = &cost{Test: test, began: time.Now()}
		meter.running[test] = c
	}
	c.stories++
	meter.users[namespace] = test
	t.Cleanup(func() {
		meter.Lock()
		defer meter.Unlock()
		if meter.users[namespace] == test {
			delete(meter.users, namespace)
		}
		if c.stories--; c.stories > 0 {
			return
		}
		delete(meter.running, test)
		c.Seconds = time.Since(c.began).Seconds()
		line, _ := json.Marshal(c)
		if file, err := os.OpenFile(os.Getenv("COST"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
			_, _ = file.Write(append(line, '\n')) // at once, because several processes write
			_ = file.Close()
		}
	})
}
