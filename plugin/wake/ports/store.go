package ports

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cnpg-i/scale-to-zero/plugin/retry"
)

// What the ConfigMaps are known by.
const (
	// Label marks them; the informers see no others.
	Label = "scale-to-zero.cnpg-i.io/ports"
	// LabelValue is the label's value.
	LabelValue = "true"
	namePrefix = "scale-to-zero-ports-"
)

// perBlock is how many ports a ConfigMap is about: about 60 KiB if all are taken, which is written for each that
// changes.
const perBlock = 500

// attempts limits the retries of a change after a conflict. Each conflict means that another replica has succeeded.
const attempts = 20

// Store keeps the ledger in ConfigMaps. It may be used by several goroutines.
type Store struct {
	// Client reads from the informers and writes; APIReader reads from the API server.
	Client    client.Client
	APIReader client.Reader
	// Namespace is the plugin's own, Range the ports.
	Namespace string
	Range     Range
	// Named returns the Services, of all clusters, for which any replica has a slice that names the port.
	Named func(ctx context.Context, port uint16) ([]types.UID, error)

	// changing serializes the changes of this replica, so that only those of other replicas conflict.
	changing sync.Mutex

	mutex  sync.Mutex
	joined *batch            // what waits for its turn to be written
	known  map[Range]knowing // what has been read from the informers
}

// knowing is a block as the informers had it.
type knowing struct {
	version string
	ledger  Ledger
}

// batch are Services that get their ports in one write: when a fleet arms, it is thousands at once.
type batch struct {
	requests []Request
	assigned map[types.UID]uint16
	err      error
	written  chan struct{}
}

// portIn is the port of a Service as far as the informers know.
func portIn(ledgers []Ledger, uid types.UID) (uint16, bool) {
	for _, ledger := range ledgers {
		if port, ok := ledger.Of(uid); ok && ledger.entries[port].freed.IsZero() {
			return port, true
		}
	}
	return 0, false
}

// Assign gives every Service its port, but those for which there is none; it writes nothing where each has one. Errors
// are the API server's.
func (s *Store) Assign(ctx context.Context, requests []Request, now time.Time) (map[types.UID]uint16, error) {
	ledgers, err := s.cached(ctx)
	if err != nil {
		return nil, err
	}
	assigned := make(map[types.UID]uint16, len(requests))
	var missing []Request
	for _, request := range requests {
		if port, ok := portIn(ledgers, request.UID); ok {
			assigned[request.UID] = port
		} else {
			missing = append(missing, request)
		}
	}
	if len(missing) == 0 {
		return assigned, nil
	}
	given, err := s.join(ctx, missing, now)
	if err != nil {
		return nil, err
	}
	for _, request := range missing {
		if port, ok := given[request.UID]; ok {
			assigned[request.UID] = port
		}
	}
	return assigned, nil
}

// join adds to the batch that waits, if there is one, and returns what the whole batch was given. The caller that
// begins a batch writes it, when the one before has been written.
func (s *Store) join(ctx context.Context, missing []Request, now time.Time) (map[types.UID]uint16, error) {
	s.mutex.Lock()
	b := s.joined
	begins := b == nil
	if begins {
		b = &batch{assigned: map[types.UID]uint16{}, written: make(chan struct{})}
		s.joined = b
	}
	b.requests = append(b.requests, missing...)
	s.mutex.Unlock()
	if !begins {
		select {
		case <-b.written:
			return b.assigned, b.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	s.mutex.Lock()
	s.joined = nil
	s.mutex.Unlock()
	b.err = s.give(ctx, b, now)
	close(b.written)
	return b.assigned, b.err
}

// give gives as many ports as there are: those that the Services have had or that slices name, then the lowest that
// nobody has had, so that replicas look in the same order and find what another has given, and then those that have
// rested. Blocks that have nothing to give, as far as the informers know, are passed over.
func (s *Store) give(ctx context.Context, b *batch, now time.Time) error {
	left, err := s.fair(ctx, b.requests, now)
	if err != nil {
		return err
	}
	for _, round := range []struct {
		age  Age
		asks func(Ledger, Request) bool
	}{
		{Fresh, func(l Ledger, w Request) bool { _, had := l.Of(w.UID); return had || l.of.Contains(w.Led) }},
		{Fresh, func(l Ledger, _ Request) bool { return l.Gives(Fresh, now) }},
		{Rested, func(l Ledger, _ Request) bool { return l.Gives(Rested, now) }},
	} {
		ledgers, err := s.cached(ctx)
		if err != nil {
			return err
		}
		for _, ledger := range ledgers {
			asks := func(w Request) bool { return round.asks(ledger, w) }
			if left, err = s.giveIn(ctx, ledger.of, round.age, left, asks, b.assigned, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// fair returns those that may have a port. So that no tenant exhausts the range, a namespace gets ports beyond those of
// its clusters' first Services only while it has fewer than are free. A Service that a slice already routes to a port
// keeps it.
func (s *Store) fair(ctx context.Context, requests []Request, now time.Time) ([]Request, error) {
	ledgers, err := s.cached(ctx)
	if err != nil {
		return nil, err
	}
	free, had := 0, map[string]int{}
	for _, ledger := range ledgers {
		ledger.share(&free, had, now)
	}
	var may []Request
	for _, request := range requests {
		if request.First || request.Led != 0 || had[request.Namespace] < free {
			may = append(may, request)
			had[request.Namespace]++
			free--
		}
	}
	return may, nil
}

// giveIn gives ports of one block, in one write, and returns the Services that got none. It reads the result from the
// ledger that was written, because one computed before a conflict does not hold.
func (s *Store) giveIn(
	ctx context.Context, block Range, age Age, requests []Request, asks func(Request) bool, assigned map[types.UID]uint16, now time.Time,
) (left []Request, err error) {
	if !slices.ContainsFunc(requests, asks) {
		return requests, nil
	}
	free := func(port uint16, of types.UID) (bool, error) {
		naming, err := s.Named(ctx, port)
		return !slices.ContainsFunc(naming, func(uid types.UID) bool { return uid != of }), err
	}
	written, err := s.change(ctx, block, func(ledger Ledger) (Ledger, bool, error) {
		changed := false
		for _, request := range requests {
			if _, has := portIn([]Ledger{ledger}, request.UID); has || !asks(request) {
				continue
			}
			next, _, err := ledger.Assign(request, age, free, now)
			if errors.Is(err, ErrNoPort) {
				continue
			}
			if err != nil {
				return ledger, false, err
			}
			ledger, changed = next, true
		}
		return ledger, changed, nil
	})
	if err != nil {
		return nil, err
	}
	for _, request := range requests {
		if port, ok := portIn([]Ledger{written}, request.UID); ok {
			assigned[request.UID] = port
		} else {
			left = append(left, request)
		}
	}
	return left, nil
}

// Free marks the ports of Services that are gone.
func (s *Store) Free(ctx context.Context, gone []types.UID, now time.Time) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	ledgers, err := s.cached(ctx)
	if err != nil {
		return err
	}
	for _, cached := range ledgers {
		if _, marked := cached.Free(gone, now); !marked {
			continue
		}
		_, err := s.change(ctx, cached.of, func(ledger Ledger) (Ledger, bool, error) {
			after, marked := ledger.Free(gone, now)
			return after, marked, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// BelongsToAnother reports whether the ledger, as the informers have it, gives the port to another Service than this
// one.
func (s *Store) BelongsToAnother(ctx context.Context, port uint16, than types.UID) (bool, error) {
	ledgers, err := s.cached(ctx)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(ledgers, func(l Ledger) bool {
		e, taken := l.entries[port]
		return taken && e.freed.IsZero() && e.owner.Name != "" && e.owner.UID != than
	}), nil
}

// Owners are the Services that have a port and are not known to be gone.
func (s *Store) Owners(ctx context.Context) ([]Owner, error) {
	ledgers, err := s.cached(ctx)
	if err != nil {
		return nil, err
	}
	var owners []Owner
	for _, ledger := range ledgers {
		owners = append(owners, ledger.Owners()...)
	}
	return owners, nil
}

// change applies a change to a block on the state that the API server has, until no other replica comes between, and
// returns the ledger that the API server has then. The change may be computed several times; it says whether there is
// anything to write.
func (s *Store) change(ctx context.Context, block Range, compute func(Ledger) (Ledger, bool, error)) (Ledger, error) {
	var written Ledger
	err := retry.OnError(wait.Backoff{Steps: attempts}, cameBetween, func() (err error) {
		written, err = s.tryChange(ctx, block, compute)
		return err
	})
	return written, err
}

// cameBetween reports whether another replica has written since a block was read.
func cameBetween(err error) bool { return apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) }

func (s *Store) tryChange(
	ctx context.Context, block Range, compute func(Ledger) (Ledger, bool, error),
) (Ledger, error) {
	have, err := s.read(ctx, block)
	if err != nil {
		return Ledger{}, err
	}
	after, changed, err := compute(ReadLedger(block, have.Data))
	if err != nil || !changed {
		return after, err
	}
	maps.Copy(have.Data, after.Data()) // what another range wrote stays
	have.Labels[Label] = LabelValue
	if have.ResourceVersion == "" {
		err = s.Client.Create(ctx, have)
	} else {
		err = s.Client.Update(ctx, have) // the resourceVersion that was read is its precondition
	}
	if err != nil {
		return after, fmt.Errorf("write ConfigMap %s: %w", have.Name, err)
	}
	return after, nil
}

// cached are the blocks as the informers have them, the lowest first. A block is parsed again only if it has changed.
// All are listed at once, because a cache of some namespaces looks the kind up among all that the API server serves at
// each call.
func (s *Store) cached(ctx context.Context) ([]Ledger, error) {
	var list corev1.ConfigMapList
	if err := s.Client.List(ctx, &list, client.InNamespace(s.Namespace)); err != nil {
		return nil, fmt.Errorf("list the ConfigMaps of the ports: %w", err)
	}
	named := make(map[string]corev1.ConfigMap, len(list.Items))
	for i := range list.Items {
		named[list.Items[i].Name] = list.Items[i]
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.known == nil {
		s.known = map[Range]knowing{}
	}
	blocks := s.blocks()
	ledgers := make([]Ledger, 0, len(blocks))
	for _, block := range blocks {
		have := named[nameOf(block)] // empty if there is none
		known, ok := s.known[block]
		if !ok || known.version != have.ResourceVersion {
			known = knowing{have.ResourceVersion, ReadLedger(block, have.Data)}
			s.known[block] = known
		}
		ledgers = append(ledgers, known.ledger)
	}
	return ledgers, nil
}

// read reads a block from the API server. It is empty, and has no version, if it is not there.
func (s *Store) read(ctx context.Context, block Range) (*corev1.ConfigMap, error) {
	var have corev1.ConfigMap
	err := s.APIReader.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: nameOf(block)}, &have)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", nameOf(block), err)
	}
	if err != nil {
		have = corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: nameOf(block)}}
	}
	have.Labels, have.Data = labels.Merge(have.Labels, nil), labels.Merge(have.Data, nil) // neither is nil
	return &have, nil
}

// blocks are the parts of the range, the lowest first. Their bounds do not depend on the range's ends, so that another
// range finds the same ConfigMaps.
func (s *Store) blocks() []Range {
	first, last := int(s.Range.First)/perBlock, int(s.Range.Last)/perBlock
	blocks := make([]Range, 0, last-first+1)
	for i := first; i <= last; i++ {
		blocks = append(blocks, Range{
			First: uint16(max(i*perBlock, int(s.Range.First))), Last: uint16(min((i+1)*perBlock-1, int(s.Range.Last))),
		})
	}
	return blocks
}

// nameOf is the ConfigMap of a block.
func nameOf(block Range) string {
	return namePrefix + strconv.Itoa(int(block.First)/perBlock*perBlock)
}
