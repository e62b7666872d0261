package postgrestest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Standby starts a streaming hot standby of the server, which ends with the test.
func (s *Server) Standby(t *testing.T) *Server {
	t.Helper()
	standby := place(t, s.root, s.Major)
	backup := s.command("pg_basebackup", "-h", s.inside, "-p", strconv.Itoa(int(s.Port)), "-U", "postgres", "-D", standby.inside+"/data", "-R", "-c", "fast")
	if out, err := backup.CombinedOutput(); err != nil {
		t.Fatalf("pg_basebackup: %v: %s", err, out)
	}
	file, err := os.OpenFile(filepath.Join(standby.Directory, "data", "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = fmt.Fprintf(file, "port=%d\nunix_socket_directories='%s'\n", standby.Port, standby.inside) // the last line wins
	must(t, err)
	must(t, file.Close())
	standby.run(t)
	return standby
}

// Psql runs a file with psql over the socket, as documented in the readme, and returns its output.
func (s *Server) Psql(t *testing.T, role, database, file string) (string, error) {
	t.Helper()
	input, err := os.Open(file)
	must(t, err)
	defer func() { _ = input.Close() }()
	psql := s.command("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", s.inside, "-p", strconv.Itoa(int(s.Port)), "-U", role, "-f", "-", database)
	psql.SysProcAttr.Credential = nil // run as this process's user: peer authentication admits the superuser only from there
	psql.Stdin = input
	out, err := psql.CombinedOutput()
	return string(out), err
}
