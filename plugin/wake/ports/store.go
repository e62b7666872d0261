package ports

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What the ConfigMaps are known by.
const (
	// Label marks them; the informers see no others.
	Label = "scale-to-zero.cnpg-i.io/ports"
	// LabelValue is the label's value.
	LabelValue = "true"
	namePrefix = "scale-to-zero-ports-"
)

// perBlock is how many ports a ConfigMap is about: about 60 KiB if all are taken, which is written for each that changes.
const perBlock = 500

// attempts bounds how often a change that met another replica's is tried again; each time one of the replicas gets on.
const attempts = 20

// Store keeps the ledger in ConfigMaps. It may be used by several goroutines.
type Store struct {
	// Client reads from the informers and writes; Live reads from the API server.
	Client client.Client
	Live   client.Reader
	// Namespace is the plugin's own, Range the ports.
	Namespace string
	Range     Range

	// One change at a time: the replicas' changes may meet, those of one replica need not.
	mutex sync.Mutex
}

// Port is the port of a Service as far as the informers know.
func (s *Store) Port(ctx context.Context, uid types.UID, home string) (uint16, bool, error) {
	for _, block := range s.blocks(home) {
		ledger, _, err := s.read(ctx, s.Client, block)
		if err != nil {
			return 0, false, err
		}
		if port, has := ledger.Of(uid); has && ledger.entries[port].freed.IsZero() {
			return port, true, nil
		}
	}
	return 0, false, nil
}

// Assign gives every owner its port; it writes nothing where each has one. home, the cluster, says which block is looked at
// first, so that its Services share a ConfigMap and clusters seldom do. Errors are [ErrNoPort] and the API server's.
// named is asked only if a port has to be given.
func (s *Store) Assign(ctx context.Context, home string, owners []Owner, named func() (Named, error), now time.Time) (map[types.UID]uint16, error) {
	assigned := make(map[types.UID]uint16, len(owners))
	var missing []Owner
	for _, owner := range owners {
		port, has, err := s.Port(ctx, owner.UID, home)
		if err != nil {
			return nil, err
		}
		if has {
			assigned[owner.UID] = port
		} else {
			missing = append(missing, owner)
		}
	}
	if len(missing) == 0 {
		return assigned, nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	held, err := named()
	if err != nil {
		return nil, err
	}
	for _, block := range s.blocks(home) {
		left, err := s.assignIn(ctx, block, missing, held, now, assigned)
		if err != nil {
			return nil, err
		}
		if missing = left; len(missing) == 0 {
			return assigned, nil
		}
	}
	return nil, fmt.Errorf("assign a port to Service %s/%s: %w", missing[0].Namespace, missing[0].Name, ErrNoPort)
}

// assignIn gives ports of one block, in one write, and returns the owners that got none.
func (s *Store) assignIn(ctx context.Context, block Range, owners []Owner, named Named, now time.Time, assigned map[types.UID]uint16) (left []Owner, err error) {
	err = s.change(ctx, block, func(ledger Ledger) (Ledger, bool) {
		before, after := len(ledger.entries), ledger
		left = nil
		changed := false
		for _, owner := range owners {
			had, has := after.Of(owner.UID)
			freed := has && !after.entries[had].freed.IsZero()
			next, port, err := after.Assign(owner, named, now)
			if err != nil {
				left = append(left, owner)
				continue
			}
			changed = changed || !has || freed
			after, assigned[owner.UID] = next, port
		}
		return after, changed || len(after.entries) != before
	})
	return left, err
}

// Free marks the ports of Services that are gone.
func (s *Store) Free(ctx context.Context, gone []types.UID, now time.Time) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, block := range s.blocks("") {
		cached, exists, err := s.read(ctx, s.Client, block)
		if err != nil {
			return err
		}
		if _, marked := cached.Free(gone, now); exists == nil || !marked {
			continue
		}
		if err := s.change(ctx, block, func(ledger Ledger) (Ledger, bool) { return ledger.Free(gone, now) }); err != nil {
			return err
		}
	}
	return nil
}

// Owners are the Services that have a port and are not known to be gone.
func (s *Store) Owners(ctx context.Context) ([]Owner, error) {
	var owners []Owner
	for _, block := range s.blocks("") {
		ledger, _, err := s.read(ctx, s.Client, block)
		if err != nil {
			return nil, err
		}
		owners = append(owners, ledger.Owners()...)
	}
	return owners, nil
}

// change applies a change to a block on the state that the API server has, until no other replica comes between. The change
// may be computed several times; it says whether there is anything to write.
func (s *Store) change(ctx context.Context, block Range, compute func(Ledger) (Ledger, bool)) error {
	var err error
	for range attempts {
		var again bool
		if again, err = s.tryChange(ctx, block, compute); !again {
			return err
		}
	}
	return fmt.Errorf("change the ports of %s: %w", block, err)
}

// tryChange tells whether the change has to be tried again because another replica came between.
func (s *Store) tryChange(ctx context.Context, block Range, compute func(Ledger) (Ledger, bool)) (bool, error) {
	ledger, have, err := s.read(ctx, s.Live, block)
	if err != nil {
		return false, err
	}
	after, changed := compute(ledger)
	if !changed {
		return false, nil
	}
	if have == nil {
		err := s.Client.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: nameOf(block), Labels: map[string]string{Label: LabelValue}},
			Data:       after.Data(),
		})
		return apierrors.IsAlreadyExists(err), wrap("create", block, err)
	}
	have = have.DeepCopy()
	if have.Data == nil {
		have.Data = map[string]string{}
	}
	maps.Copy(have.Data, after.Data()) // what another range wrote stays
	if have.Labels == nil {
		have.Labels = map[string]string{}
	}
	have.Labels[Label] = LabelValue
	err = s.Client.Update(ctx, have) // the resourceVersion that was read is its precondition
	return apierrors.IsConflict(err), wrap("update", block, err)
}

func wrap(verb string, block Range, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s ConfigMap %s: %w", verb, nameOf(block), err)
}

// read reads a block; one that is not there is empty.
func (s *Store) read(ctx context.Context, from client.Reader, block Range) (Ledger, *corev1.ConfigMap, error) {
	var have corev1.ConfigMap
	err := from.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: nameOf(block)}, &have)
	if apierrors.IsNotFound(err) {
		return ReadLedger(block, nil), nil, nil
	}
	if err != nil {
		return Ledger{}, nil, fmt.Errorf("read ConfigMap %s: %w", nameOf(block), err)
	}
	return ReadLedger(block, have.Data), &have, nil
}

// blocks are the parts of the range, beginning with the home's. Their bounds do not depend on the range's ends, so that
// another range finds the same ConfigMaps.
func (s *Store) blocks(home string) []Range {
	first, last := int(s.Range.First)/perBlock, int(s.Range.Last)/perBlock
	blocks := make([]Range, 0, last-first+1)
	for i := first; i <= last; i++ {
		blocks = append(blocks, Range{
			First: uint16(max(i*perBlock, int(s.Range.First))), Last: uint16(min((i+1)*perBlock-1, int(s.Range.Last))),
		})
	}
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(home))
	at := int(hash.Sum32() % uint32(len(blocks)))
	return append(blocks[at:len(blocks):len(blocks)], blocks[:at]...)
}

// nameOf is the ConfigMap of a block.
func nameOf(block Range) string {
	return namePrefix + strconv.Itoa(int(block.First)/perBlock*perBlock)
}
