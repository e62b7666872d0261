package doze

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
)

// Postmaster identifies PostgreSQL's main process. Two values are equal if they identify the same process.
type Postmaster struct {
	// Running is set from shortly before the process accepts sessions until shortly before its end.
	Running bool
	// PID and Started, in seconds since 1970, identify the process. They are zero unless it is running.
	PID, Started int64
}

// maximumLock is the maximum size of a lock file in bytes: two paths and three numbers.
const maximumLock = 16 << 10

// errLock means that a lock file cannot be understood: it is being written, or is not PostgreSQL's.
var errLock = errors.New("invalid lock file")

// readLock returns the postmaster that holds a socket's lock file. The file of one that was killed stays.
func readLock(path string) (Postmaster, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Postmaster{}, nil
	}
	if err != nil {
		return Postmaster{}, fmt.Errorf("read PostgreSQL's lock file: %w", err)
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, maximumLock))
	if err != nil {
		return Postmaster{}, fmt.Errorf("read PostgreSQL's lock file: %w", err)
	}
	return parseLock(content)
}

// parseLock reads the lines of a lock file: the process's number, its data directory, and its start; the port and the
// socket's directory follow (CreateLockFile in PostgreSQL's src/backend/utils/init/miscinit.c). The file is created
// before it is written.
func parseLock(content []byte) (Postmaster, error) {
	lines := bytes.SplitN(content, []byte("\n"), 4)
	if len(lines) < 4 {
		return Postmaster{}, fmt.Errorf("%w: it has %d complete lines", errLock, len(lines)-1)
	}
	pid, err := parsePositive(lines[0])
	if err != nil {
		return Postmaster{}, err
	}
	started, err := parsePositive(lines[2])
	if err != nil {
		return Postmaster{}, err
	}
	return Postmaster{Running: true, PID: pid, Started: started}, nil
}

func parsePositive(line []byte) (int64, error) {
	n, err := strconv.ParseInt(string(line), 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("%w: %.20q is no positive number", errLock, line)
	}
	return n, nil
}
