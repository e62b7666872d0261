package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	cnpgv1 "github.com/cloudnative-pg/cloudnative-pg/api/v1"
)

// holdsItsPlace is for how long a cluster that starts keeps others from starting. Its operator may be away in the turn of another test.
const holdsItsPlace = time.Minute

// starts creates clusters and waits until they are healthy. As many calls do so at once as this machine has processors, in whatever
// network: more of them would take longer than one after another.
func (s *story) starts(clusters ...*cnpgv1.Cluster) {
	s.Helper()
	leave := s.placeToStart()
	defer leave()
	defer time.AfterFunc(holdsItsPlace, leave).Stop()
	for _, c := range clusters {
		s.must(kube.Create(s.ctx, c))
	}
	for _, c := range clusters {
		s.must(kube.AwaitHealthy(s.ctx, c, toHealthy))
	}
}

// placeToStart waits until this machine has a place for a cluster that starts. Each is a file that one process has locked.
func (s *story) placeToStart() (leave func()) {
	s.Helper()
	for ; ; pause(s, pollEvery) {
		for i := range runtime.NumCPU() {
			path := filepath.Join(os.TempDir(), fmt.Sprintf("cnpg-i-scale-to-zero-starts-%d-%d", os.Getuid(), i))
			place, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
			s.must(err)
			if syscall.Flock(int(place.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				return sync.OnceFunc(func() { _ = place.Close() })
			}
			_ = place.Close()
		}
	}
}
