package startup

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

var update = flag.Bool("update", false, "record the clients anew (TEST_POSTGRES_ROOTS names where psql is)")

// TestRealClients reads what real clients sent, as it was recorded: the parts that the client sent, the answers, and how the
// startup packet is understood.
func TestRealClients(t *testing.T) {
	t.Parallel()
	if *update {
		recordClients(t)
	}
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			client, answers, want := parseTranscript(t, content)
			packet, err := Read(client, limit)
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(packet); got != want || string(client.answers) != answers {
				t.Errorf("got %s after answers %q, want %s after %q", got, client.answers, want, answers)
			}
		})
	}
}

func describe(o Packet) string {
	return fmt.Sprintf("kind=%s user=%q database=%q replication=%d server_name=%q", o.Kind, o.User, o.Database, o.Replication, o.ServerName)
}

// parseTranscript reads lines "client HEX", "server BYTE" and "packet DESCRIPTION".
func parseTranscript(t *testing.T, content []byte) (client *script, answers, packet string) {
	t.Helper()
	client = &script{}
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 4*limit)
	for lines.Scan() {
		verb, rest, _ := strings.Cut(lines.Text(), " ")
		switch verb {
		case "client":
			part, err := hex.DecodeString(rest)
			if err != nil {
				t.Fatal(err)
			}
			client.parts = append(client.parts, part)
		case "server":
			answers += rest
		case "packet":
			packet = rest
		}
	}
	return client, answers, packet
}

// recording is a connection that writes its transcript.
type recording struct {
	net.Conn
	text strings.Builder
	part []byte
}

func (r *recording) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	r.part = append(r.part, p[:n]...)
	return n, err
}

func (r *recording) Write(p []byte) (int, error) {
	r.flush()
	fmt.Fprintf(&r.text, "server %s\n", p)
	return r.Conn.Write(p)
}

func (r *recording) flush() {
	if len(r.part) > 0 {
		fmt.Fprintf(&r.text, "client %x\n", r.part)
	}
	r.part = nil
}

// recordClients runs every client against a listener that hangs up behind the startup packet.
func recordClients(t *testing.T) {
	t.Helper()
	for item := range strings.SplitSeq(os.Getenv("TEST_POSTGRES_ROOTS"), ":") {
		major, root, _ := strings.Cut(item, "=")
		for name, settings := range map[string]string{
			"disable": "sslmode=disable", "prefer": "sslmode=prefer", "require": "sslmode=require",
			"replication": "sslmode=disable replication=true", "direct": "sslmode=require sslnegotiation=direct", "protocol-3.2": "sslmode=disable max_protocol_version=3.2",
		} {
			if name == "direct" && major < "17" || name == "protocol-3.2" && major < "18" {
				continue
			}
			recordClient(t, "psql-"+major+"-"+name, func(ctx context.Context, port int) {
				psql := exec.CommandContext(ctx, "/usr/lib/postgresql/"+major+"/bin/psql", "-X", "-c", "select 1",
					fmt.Sprintf("host=localhost port=%d user=ann dbname=app %s", port, settings))
				psql.Env, psql.Dir = []string{"HOME=/tmp", "PGHOSTADDR=127.0.0.1"}, "/"
				psql.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
				_ = psql.Run() // it is hung up on
			})
		}
	}
	for _, mode := range []string{"disable", "require"} {
		recordClient(t, "pgx-"+mode, func(ctx context.Context, port int) {
			if conn, err := pgx.Connect(ctx, fmt.Sprintf("host=localhost port=%d user=ann dbname=app sslmode=%s", port, mode)); err == nil {
				_ = conn.Close(ctx)
			}
		})
	}
}

func recordClient(t *testing.T, name string, run func(context.Context, int)) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); run(ctx, listener.Addr().(*net.TCPAddr).Port) }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	recorder := &recording{Conn: conn}
	packet, err := Read(recorder, limit)
	err = errors.Join(err, conn.Close(), listener.Close())
	<-done
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	recorder.flush()
	fmt.Fprintf(&recorder.text, "packet %s\n", describe(packet))
	if err := os.WriteFile(filepath.Join("testdata", name+".txt"), []byte(recorder.text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
