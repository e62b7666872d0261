package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sync/singleflight"
)

// ErrNotProvided says that a variable is not set and that nothing makes what it names: the cluster was not made by on-cluster.sh.
var ErrNotProvided = errors.New("it is not set, and provide.sh can make what it names only on a cluster that `make` has created")

// providing makes each thing once, however many tests ask for it at a time.
var providing singleflight.Group

// Provided returns the value of a variable of the environment, such as the name of an image. If the variable is not set,
// PROVIDE, which is the path of provide.sh, makes what it names, in the network OUTSIDE.
func Provided(ctx context.Context, variable string) (string, error) {
	value, err, _ := providing.Do(variable, func() (any, error) {
		if value := os.Getenv(variable); value != "" {
			return value, nil
		}
		return provide(ctx, variable)
	})
	if err != nil {
		return "", err
	}
	return value.(string), nil
}

func provide(ctx context.Context, variable string) (string, error) {
	script := os.Getenv("PROVIDE")
	if script == "" {
		return "", fmt.Errorf("%s: %w", variable, ErrNotProvided)
	}
	var said strings.Builder
	command := exec.CommandContext(ctx, "nsenter", "--net="+os.Getenv("OUTSIDE"), script, variable)
	command.Stderr = &said
	printed, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("make %s: %w: %s", variable, err, said.String())
	}
	value := strings.TrimSpace(string(printed))
	return value, os.Setenv(variable, value)
}
