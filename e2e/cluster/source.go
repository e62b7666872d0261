package cluster

import (
	"context"
	"errors"
	"strings"
)

// source is where this machine's apt gets Debian from, as apt reads its own files, so that no host is written down here.
func source(ctx context.Context) (string, error) {
	targets, err := do(ctx, "apt-get", "indextargets", "--no-release-info", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", err
	}
	uri := sourceIn(targets)
	if uri == "" {
		return "", errors.New("find a source of Debian packages: apt has none")
	}
	return uri, nil
}

// sourceIn finds the first source in lines of a suite and an address. Sources of security updates are left out, because they have no
// other packages, and those on discs.
func sourceIn(targets string) string {
	for target := range strings.Lines(targets) {
		suite, uri, _ := strings.Cut(strings.TrimSpace(target), " ")
		if !strings.Contains(suite, "security") && strings.Contains(uri, ":/") && len(strings.Fields(uri)) == 1 {
			return uri
		}
	}
	return ""
}
