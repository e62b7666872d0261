package ports

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func owner(uid string) Owner { return Owner{UID: types.UID(uid), Namespace: "shop", Name: uid} }

func request(uid string) Request { return Request{Owner: owner(uid), First: true} }

func nobody(context.Context, uint16) ([]types.UID, error) { return nil, nil }

// named are the ports that slices name.
type named map[uint16]types.UID

func (n named) free(port uint16, of types.UID) (bool, error) {
	by, ok := n[port]
	return !ok || by == of, nil
}

func (n named) by(uid types.UID) uint16 {
	for port, by := range n {
		if by == uid {
			return port
		}
	}
	return 0
}

func TestParseRange(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule, value string
		good        bool
	}{
		{"the default is good", "10000-29999", true},
		{"a single port is a range", "1024-1024", true},
		{"the highest port is a port", "65000-65535", true},
		{"privileged ports are not for it", "1023-2000", false},
		{"there is no port 65536", "65000-65536", false},
		{"a range goes up", "2000-1999", false},
		{"a single number is no range", "10000", false},
		{"spaces are not understood", "10000 - 20000", false},
		{"nothing is no range", "", false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			got, err := ParseRange(row.value)
			if (err == nil) != row.good || err != nil && !errors.Is(err, ErrNotARange) {
				t.Fatalf("got %v, %v", got, err)
			}
			if row.good && got.String() != row.value {
				t.Errorf("got %s, want %s", got, row.value)
			}
		})
	}
}

func TestCheckFree(t *testing.T) {
	t.Parallel()
	r, kernel := Range{10000, 29999}, Range{32768, 60999}
	for _, row := range []struct {
		rule      string
		ephemeral Range
		own       []uint16
		free      bool
	}{
		{"Linux' default leaves it free", kernel, []uint16{8080, 9090}, true},
		{"ports of outgoing connections are not for it", Range{29999, 60999}, nil, false},
		{"nor where they are within it", Range{15000, 15001}, nil, false},
		{"nor those that the plugin listens on", kernel, []uint16{10000}, false},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			if err := r.CheckFree(row.ephemeral, row.own); (err == nil) != row.free || err != nil && !errors.Is(err, ErrOverlap) {
				t.Errorf("got %v", err)
			}
		})
	}
	if r, err := Ephemeral(); err != nil || r.Count() < 1 {
		t.Errorf("this machine's are %v, %v", r, err)
	}
}

func TestAssign(t *testing.T) {
	t.Parallel()
	const gone = "gone shop/gone freed "
	ago := func(d time.Duration) string { return gone + now.Add(-d).Format(time.RFC3339) }
	for _, row := range []struct {
		rule  string
		data  map[string]string
		named named
		want  uint16 // 0: none
		same  bool   // nothing is written
	}{
		{"the first port is given first", nil, nil, 7000, false},
		{"a Service keeps its port", map[string]string{"7001": "a shop/a"}, nil, 7001, true},
		{"a port that another Service has is not given", map[string]string{"7000": "b shop/b"}, nil, 7001, false},
		{"a port whose Service has gone rests", map[string]string{"7000": ago(9 * time.Minute), "7001": "b shop/b"}, nil, 0, true},
		{"for ten minutes", map[string]string{"7000": ago(10 * time.Minute), "7001": "b shop/b"}, nil, 7000, false},
		{"and while a slice names it", map[string]string{"7000": ago(time.Hour), "7001": "b shop/b"}, named{7000: "gone"}, 0, true},
		{"one that nobody has had is better", map[string]string{"7000": ago(time.Hour)}, nil, 7001, false},
		{"a Service that is there after all keeps it", map[string]string{"7001": "a shop/a freed 2026-03-01T11:59:00Z"}, nil, 7001, false},
		{"where the ledger was lost the slices say whose it is", nil, named{7000: "b", 7001: "a"}, 7001, false},
		{"what is not understood is somebody's", map[string]string{"7000": "?", "7001": "x y freed soon"}, nil, 0, true},
		{"entries out of the range do not matter", map[string]string{"6999": "a shop/a", "x": "a shop/a"}, nil, 7000, false},
		{"if every port is taken there is none", map[string]string{"7000": "b shop/b", "7001": "c shop/c"}, nil, 0, true},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			before := ReadLedger(Range{7000, 7001}, row.data)
			after, port, err := before.Assign(Request{Owner: owner("a"), Led: row.named.by("a")}, Rested, row.named.free, now)
			if port != row.want || (err == nil) == (row.want == 0) || err != nil && !errors.Is(err, ErrNoPort) {
				t.Fatalf("got %d, %v, want %d", port, err, row.want)
			}
			if same := cmp.Equal(before.Data(), after.Data()); same != row.same {
				t.Errorf("unchanged: %t, want %t: %v", same, row.same, after.Data())
			}
		})
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	before := ReadLedger(Range{7000, 7009}, map[string]string{"7000": "a shop/a", "7001": "b shop/b", "7002": "c shop/c freed 2026-01-01T00:00:00Z"})
	after, marked := before.Free([]types.UID{"b", "c"}, now)
	want := map[string]string{"7000": "a shop/a", "7001": "b shop/b freed 2026-03-01T12:00:00Z", "7002": "c shop/c freed 2026-01-01T00:00:00Z"}
	if diff := cmp.Diff(want, after.Data()); diff != "" || !marked {
		t.Errorf("ledger (-want +got):\n%s", diff)
	}
	if _, marked := after.Free([]types.UID{"b"}, now.Add(time.Hour)); marked {
		t.Error("a port was freed twice")
	}
	if had, has := len(before.Owners()), len(after.Owners()); had != 2 || has != 1 {
		t.Errorf("Services with a port: %d before, %d after", had, has)
	}
}

// api is a fake API server that counts writes.
func api(t *testing.T, writes *int) client.Client {
	t.Helper()
	var mutex sync.Mutex
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	count := func() {
		mutex.Lock()
		defer mutex.Unlock()
		*writes++
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			count()
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			count()
			return c.Update(ctx, o, options...)
		},
	}).Build()
}

func TestStore(t *testing.T) {
	t.Parallel()
	writes := 0
	c := api(t, &writes)
	store := &Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: Range{10000, 29999}}
	requests := []Request{request("rw"), request("r")}
	first, err := store.Assign(t.Context(), requests, now)
	if err != nil {
		t.Fatal(err)
	}
	if writes != 1 || len(first) != 2 || first["rw"] == first["r"] {
		t.Errorf("%d writes for %v: the Services of a cluster take one", writes, first)
	}
	again, err := (&Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: Range{10000, 29999}}).Assign(t.Context(), requests, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" || writes != 1 {
		t.Errorf("after a restart, with %d writes (-first +again):\n%s", writes, diff)
	}
	if err := store.Free(t.Context(), []types.UID{"rw"}, now); err != nil {
		t.Fatal(err)
	}
	if err := store.Free(t.Context(), []types.UID{"rw", "unknown"}, now); err != nil {
		t.Fatal(err)
	}
	left, err := store.Owners(t.Context())
	if diff := cmp.Diff([]Owner{owner("r")}, left); diff != "" || err != nil || writes != 2 {
		t.Errorf("%v, %d writes, owners (-want +got):\n%s", err, writes, diff)
	}
}

func TestAnotherRangeLeavesWhatIsWritten(t *testing.T) {
	t.Parallel()
	writes := 0
	c := api(t, &writes)
	if _, err := (&Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: Range{10000, 10000}}).Assign(t.Context(), []Request{request("a")}, now); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: Range{10001, 10499}}).Assign(t.Context(), []Request{request("b")}, now); err != nil {
		t.Fatal(err)
	}
	assigned, err := (&Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: Range{10000, 10499}}).Assign(t.Context(), []Request{request("a"), request("b")}, now)
	if assigned["a"] != 10000 || assigned["b"] != 10001 || err != nil || writes != 2 {
		t.Errorf("got %v, %v, %d writes", assigned, err, writes)
	}
}

// The replica that comes second computes its change anew, and what it computed before is nobody's.
func TestAssign_losesTheLastPortToAnotherReplica(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		rule string
		had  []Request // who has a port before
		of   Range
	}{
		{"that creates the ledger at the same time", nil, Range{10000, 10000}},
		{"that changes it at the same time", []Request{request("a")}, Range{10000, 10001}},
		{"in the last of several blocks", []Request{request("a")}, Range{10499, 10500}},
	} {
		t.Run(row.rule, func(t *testing.T) {
			t.Parallel()
			writes := 0
			c := api(t, &writes)
			other := &Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: row.of}
			if _, err := other.Assign(t.Context(), row.had, now); err != nil {
				t.Fatal(err)
			}
			var once sync.Once
			first := func(ctx context.Context) {
				once.Do(func() {
					if _, err := other.Assign(ctx, []Request{request("winner")}, now); err != nil {
						t.Error(err)
					}
				})
			}
			raced := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
					first(ctx)
					return c.Create(ctx, o, options...)
				},
				Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
					first(ctx)
					return c.Update(ctx, o, options...)
				},
			})
			store := &Store{Client: raced, APIReader: c, Namespace: "system", Named: nobody, Range: row.of}
			got, err := store.Assign(t.Context(), []Request{request("loser")}, now)
			if len(got) != 0 || err != nil {
				t.Errorf("the loser gets port %d, %v: it is the winner's", got["loser"], err)
			}
		})
	}
}

// A port is assigned only once the API server has it.
func TestAssign_failsIfTheAPIServerDoesNotAnswerInTime(t *testing.T) {
	t.Parallel()
	writes := 0
	c := api(t, &writes)
	late := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return context.DeadlineExceeded
		},
	})
	store := &Store{Client: late, APIReader: c, Namespace: "system", Named: nobody, Range: Range{10000, 10001}}
	if got, err := store.Assign(t.Context(), []Request{request("a")}, now); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("assigned %v, %v", got, err)
	}
}

// A user who may create Services takes no more than a share of the ports.
func TestAssign_sharesThePortsFairly(t *testing.T) {
	t.Parallel()
	writes := 0
	c := api(t, &writes)
	store := &Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: Range{10490, 10509}}
	of := func(namespace, name string, first bool) Request {
		return Request{Owner: Owner{UID: types.UID(namespace + name), Namespace: namespace, Name: name}, First: first}
	}
	give := func(request Request) bool {
		t.Helper()
		assigned, err := store.Assign(t.Context(), []Request{request}, now)
		if err != nil {
			t.Fatal(err)
		}
		return len(assigned) == 1
	}
	taken := 0
	for i := range 100 {
		if give(of("greedy", fmt.Sprint(i), false)) {
			taken++
		}
	}
	if taken != 10 {
		t.Errorf("one namespace takes %d of 20 ports, want half of them", taken)
	}
	if !give(of("greedy", "0", false)) {
		t.Error("a Service does not keep its port")
	}
	for i := range 4 {
		if !give(of("shop", fmt.Sprint(i), false)) {
			t.Errorf("another namespace does not get port %d", i)
		}
	}
	for i := range 6 {
		if !give(of("greedy", fmt.Sprint("first-", i), true)) {
			t.Errorf("the first Services of a cluster do not get port %d while there is one", i)
		}
	}
	if give(of("shop", "first", true)) {
		t.Error("there are more ports than the range has")
	}
}

func TestBelongsToAnother(t *testing.T) {
	t.Parallel()
	writes := 0
	c := api(t, &writes)
	store := &Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: Range{10000, 10999}}
	if _, err := store.Assign(t.Context(), []Request{request("a"), request("gone")}, now); err != nil {
		t.Fatal(err)
	}
	if err := store.Free(t.Context(), []types.UID{"gone"}, now); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		rule string
		port uint16
		than types.UID
		want bool
	}{
		{"a Service's own port is not another's", 10000, "a", false},
		{"that of a Service that is there is", 10000, "b", true},
		{"that of one that has gone is nobody's", 10001, "b", false},
		{"nor is one that nobody has had", 10002, "b", false},
	} {
		if got, err := store.BelongsToAnother(t.Context(), row.port, row.than); got != row.want || err != nil {
			t.Errorf("%s: got %t, %v", row.rule, got, err)
		}
	}
}

// Replicas that give ports at once, each on what it has read, give each port once, also when there are too few.
func TestReplicasNeverShareAPort(t *testing.T) {
	t.Parallel()
	for _, last := range []uint16{20009, 20003} {
		t.Run(fmt.Sprintf("8 Services want ports up to %d", last), func(t *testing.T) {
			t.Parallel()
			neverShare(t, Range{20000, last})
		})
	}
}

func neverShare(t *testing.T, of Range) {
	t.Helper()
	writes := 0
	c := api(t, &writes)
	const replicas, clusters = 3, 8
	type given struct {
		uid  types.UID
		port uint16
	}
	results := make(chan given, replicas*clusters)
	var group sync.WaitGroup
	for replica := range replicas {
		store := &Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: of}
		group.Go(func() {
			for i := range clusters {
				uid := fmt.Sprintf("uid-%d", (i+replica*3)%clusters) // at a full range each asks for others
				ports, err := store.Assign(t.Context(), []Request{request(uid)}, now)
				if err != nil {
					t.Error(err)
					return
				}
				if len(ports) == 0 && of.Count() < clusters {
					continue
				}
				results <- given{types.UID(uid), ports[types.UID(uid)]}
			}
		})
	}
	group.Wait()
	close(results)
	byPort, byUID := map[uint16]types.UID{}, map[types.UID]uint16{}
	for result := range results {
		if other, taken := byPort[result.port]; taken && other != result.uid {
			t.Errorf("port %d belongs to %s and to %s", result.port, other, result.uid)
		}
		if other, ok := byUID[result.uid]; ok && other != result.port {
			t.Errorf("%s has the ports %d and %d", result.uid, other, result.port)
		}
		byPort[result.port], byUID[result.uid] = result.uid, result.port
	}
	store := &Store{Client: c, APIReader: c, Namespace: "system", Named: nobody, Range: of}
	if got, err := store.Assign(t.Context(), []Request{request("x"), request("y"), request("z")}, now); len(got) != max(0, of.Count()-clusters) || err != nil {
		t.Errorf("with %d of %d ports taken: %v, %v", clusters, of.Count(), got, err)
	}
}

func FuzzReadLedger(f *testing.F) {
	f.Add("7000", "a shop/a")
	f.Add("7001", "a shop/a freed 2026-03-01T12:00:00Z")
	f.Fuzz(func(t *testing.T, key, value string) {
		ledger := ReadLedger(Range{7000, 7001}, map[string]string{key: value})
		_, port, err := ledger.Assign(request("mine"), Rested, named(nil).free, now)
		if err != nil {
			t.Fatal(err)
		}
		if e, taken := ledger.entries[port]; taken && e.owner.UID != "mine" && now.Sub(e.freed) < keptAfter {
			t.Errorf("port %d is given away although it says %q", port, value)
		}
	})
}

func FuzzParseRange(f *testing.F) {
	for _, seed := range []string{"10000-29999", "1024-1024", "01024-65535", "65000-65536", "1-2-3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		r, err := ParseRange(value)
		switch again, wrong := ParseRange(r.String()); {
		case err != nil && !errors.Is(err, ErrNotARange):
			t.Errorf("the error is %v", err)
		case err == nil && (wrong != nil || again != r || r.First < lowest || r.Count() < 1):
			t.Errorf("%q is the range %s, which is read as %s, %v", value, r, again, wrong)
		}
	})
}
