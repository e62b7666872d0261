package archives

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// notice is how a file is called that has to come along with what it is about.
var notice = regexp.MustCompile(`(?i)^(licen[sc]es?|copying|copyright|notice|patents)([.-].*)?$`)

// linked is a package that the program links.
type linked struct {
	ImportPath, Dir string
	Standard        bool
	Module          *struct {
		Path, Dir string
		Main      bool
	}
}

// notices are the licences and notices of what the program links, Go's own included. Which licences may be linked is checked
// elsewhere (make lint-licences).
func notices(ctx context.Context, module string, platform Platform) ([]file, error) {
	list := inModule(ctx, module, platform, "list", "-deps", "-json=ImportPath,Dir,Standard,Module", "./"+source)
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list what the program links: %w", err)
	}
	found := map[string]string{} // what it is called in the archive, and where it is
	licensed := map[string]bool{}
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p linked
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read what the program links: %w", err)
		}
		if p.Standard || p.Module == nil || p.Module.Main {
			continue
		}
		some, err := p.notices(found)
		if err != nil {
			return nil, err
		}
		licensed[p.Module.Path] = licensed[p.Module.Path] || some
	}
	for name, some := range licensed {
		if !some {
			return nil, fmt.Errorf("the module %s has no file with a licence", name)
		}
	}
	goLicence, err := standard(ctx, module)
	if err != nil {
		return nil, err
	}
	found["licenses/LICENSE.go"] = goLicence
	files := make([]file, 0, len(found))
	for _, name := range slices.Sorted(maps.Keys(found)) {
		files = append(files, file{name, 0o644, found[name]})
	}
	return files, nil
}

// notices adds those of the package's directory, and of each above it up to the module's. It reports whether there are any.
func (p linked) notices(found map[string]string) (bool, error) {
	below, err := filepath.Rel(p.Module.Dir, p.Dir)
	if err != nil {
		return false, fmt.Errorf("find %s in its module: %w", p.ImportPath, err)
	}
	some := false
	for below = filepath.ToSlash(below); ; below = path.Dir(below) {
		entries, err := os.ReadDir(filepath.Join(p.Module.Dir, below))
		if err != nil {
			return false, fmt.Errorf("look for licences: %w", err)
		}
		for _, entry := range entries {
			if entry.Type().IsRegular() && notice.MatchString(entry.Name()) && !strings.HasSuffix(entry.Name(), ".go") {
				found[path.Join("licenses", p.Module.Path, below, entry.Name())] = filepath.Join(p.Module.Dir, below, entry.Name())
				some = true
			}
		}
		if below == "." {
			return some, nil
		}
	}
}

// standard is where Go's own licence is.
func standard(ctx context.Context, module string) (string, error) {
	out, err := inModule(ctx, module, Platform{runtime.GOOS, runtime.GOARCH}, "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find Go: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "LICENSE"), nil
}
