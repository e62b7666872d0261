package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cnpg-i/scale-to-zero/e2e/scenario"
)

const (
	attackers = 10 // addresses
	// heldEach is how many connections each of them holds.
	heldEach = 400
	// countEvery is how often the attackers' process says how many connections it has opened.
	countEvery = 100 * time.Millisecond
)

// startAttackers starts the attackers in a process of their own, which stays on one processor, and so takes time neither from the
// calls that are measured nor, on two processors, from what it attacks. It returns how many connections they have opened; the
// function returned ends them.
func (f *fleet) startAttackers(ctx context.Context, ports []int32) (*atomic.Int64, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find this program: %w", err)
	}
	list := make([]string, 0, len(ports))
	for _, port := range ports {
		list = append(list, strconv.Itoa(int(port)))
	}
	ctx, cancel := context.WithCancel(ctx)
	command := exec.CommandContext(ctx, "taskset", "-c", "0", self, "-attackers")
	command.Stdin = strings.NewReader(strings.Join(list, "\n"))
	command.Stderr, command.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	counts, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("start the attackers: %w", err)
	}
	opened, read := new(atomic.Int64), make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(counts); lines.Scan(); {
			if count, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				opened.Store(count)
			}
		}
	}()
	return opened, func() { cancel(); <-read; _ = command.Wait() }, nil
}

// attackAll is the attackers' process: it reads the ports to attack, one a line, and writes how many connections it has opened.
func attackAll(ctx context.Context) error {
	var ports []string
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		ports = append(ports, lines.Text())
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the ports: %w", err)
	}
	var opened atomic.Int64
	var work sync.WaitGroup
	defer work.Wait()
	for number := range attackers {
		work.Go(func() { press(ctx, fmt.Sprintf("127.0.1.%d", number+1), ports, &opened) })
	}
	for scenario.Rest(ctx, countEvery) == nil {
		fmt.Println(opened.Load())
	}
	return nil
}

// press opens connections to one port after the other and holds the newest: silent ones, half a startup packet, and complete
// ones, which wake.
func press(ctx context.Context, source string, ports []string, opened *atomic.Int64) {
	said := []string{"", "\x00\x00\x00\x12\x00\x03", "\x00\x00\x00\x12\x00\x03\x00\x00user\x00app\x00\x00"}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: time.Second}
	held := make([]net.Conn, heldEach)
	for i := 0; ctx.Err() == nil; i++ {
		at := i % len(held)
		if held[at] != nil {
			_ = held[at].Close()
		}
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", ports[i%len(ports)]))
		if held[at] = conn; err != nil {
			held[at] = nil
			continue
		}
		opened.Add(1)
		_, _ = conn.Write([]byte(said[i%len(said)]))
		if i > len(held) {
			time.Sleep(10 * time.Millisecond) // a bound on the rate: the attackers share the machine with what they attack
		}
	}
	for _, conn := range held {
		if conn != nil {
			_ = conn.Close()
		}
	}
}
