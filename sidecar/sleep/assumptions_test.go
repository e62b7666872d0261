package sleep

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cnpg-i/scale-to-zero/sidecar/contract"
)

// Durations that others have chosen.
const (
	// requestTimeout is how long the API server handles a request, unless --request-timeout says otherwise.
	requestTimeout = time.Minute
	// obeysWithin is how long an instance manager may take to obey a fence (1.30: pkg/management/postgres/instance.go).
	obeysWithin = 25 * time.Second
	// sentAgainAfter is when the kernel sends a segment again of which it has no acknowledgement (TCP_RTO_MIN).
	sentAgainAfter = 200 * time.Millisecond
)

// TestModels_assumeWhatTheConstantsMakeTrue compares the durations of the table in doc.go.
func TestModels_assumeWhatTheConstantsMakeTrue(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var (
		callTimeout        = durationOf(t, "../kubernetes", "callTimeout")
		notStoppingFor     = durationOf(t, "../doze", "notStoppingFor")
		acceptingFor       = durationOf(t, "../doze", "acceptingFor")
		liftedFenceTimeout = durationOf(t, "../../plugin/wake/plan", "LiftedFenceTimeout")
		sidecarTimeout     = durationOf(t, "../../plugin/wake/plan", "sidecarTimeout")
		holdsWithin        = durationOf(t, "../../plugin/wake/waker", "holdsWithin")
		leaseDuration      = durationOf(t, "../process", "leaseDuration")
		renewInterval      = durationOf(t, "../process", "renewInterval")
		longestHandover    = durationOf(t, "../../plugin/config", "longestHandover")
		answerTimeout      = durationOf(t, "../process", "answerTimeout")
	)
	for _, row := range []struct {
		constants string // as doc.go has them
		holds     bool
	}{
		{"resumeAgainDelay > contract.AnnouncementLifetime +", resumeAgainDelay > contract.AnnouncementLifetime+callTimeout+requestTimeout},
		{"kubernetes.callTimeout + a minute (--request-timeout)", resumeAgainDelay > contract.AnnouncementLifetime+callTimeout+requestTimeout},
		{"doze.notStoppingFor >= 25 s", notStoppingFor >= obeysWithin},
		{"doze.acceptingFor >= doze.notStoppingFor", acceptingFor >= notStoppingFor},
		{"plan.LiftedFenceTimeout >= doze.acceptingFor", liftedFenceTimeout >= acceptingFor},
		{"plan.sidecarTimeout >= 25 s", sidecarTimeout >= obeysWithin},
		{"heldDelay > waker.holdsWithin + 200 ms", heldDelay > holdsWithin+sentAgainAfter},
		{"holdingTimeout >= config.longestHandover + 2 s", holdingTimeout >= longestHandover+2*time.Second},
		{"readiness.leaseDuration >= readiness.renewInterval + 2 * readiness.answerTimeout", leaseDuration >= renewInterval+2*answerTimeout},
	} {
		if !strings.Contains(string(doc), row.constants) {
			t.Errorf("the table in doc.go has no %q", row.constants)
		}
		if !row.holds {
			t.Errorf("it does not hold that %s", row.constants)
		}
	}
}

// durationOf returns a constant of a package, exported or not.
func durationOf(t *testing.T, directory, name string) time.Duration {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	positions := token.NewFileSet()
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	config := types.Config{Importer: onlyTime{}, IgnoreFuncBodies: true, Error: func(error) {}}
	checked, _ := config.Check(directory, positions, files, nil) // what needs other packages is invalid
	found, ok := checked.Scope().Lookup(name).(*types.Const)
	if !ok {
		t.Fatalf("%s has no constant %s", directory, name)
	}
	value, exact := constant.Int64Val(constant.ToInt(found.Val()))
	if !exact || value == 0 {
		t.Fatalf("%s in %s is %s", name, directory, found.Val())
	}
	return time.Duration(value)
}

// onlyTime imports of package time what a constant needs, and no other package.
type onlyTime struct{}

func (onlyTime) Import(path string) (*types.Package, error) {
	if path != "time" {
		return nil, fmt.Errorf("package %s is not imported", path)
	}
	imported := types.NewPackage(path, path)
	duration := types.NewTypeName(token.NoPos, imported, "Duration", nil)
	types.NewNamed(duration, types.Typ[types.Int64], nil)
	imported.Scope().Insert(duration)
	for name, unit := range map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour} {
		imported.Scope().Insert(types.NewConst(token.NoPos, imported, name, duration.Type(), constant.MakeInt64(int64(unit))))
	}
	imported.MarkComplete()
	return imported, nil
}
