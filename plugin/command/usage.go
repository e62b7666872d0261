package command

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError means that the command line is invalid.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usage(format string, arguments ...any) error {
	return usageError{fmt.Sprintf(format, arguments...)}
}

// flagError names the flag, its value and what is allowed.
func flagError(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		flag := invalid.GetFlag()
		switch flag.Value.Type() {
		case "duration":
			return usage(`--%s is %q; allowed is a duration such as "90s" or "5m"`, flag.Name, invalid.GetValue())
		case "bool":
			return usage(`--%s is %q; allowed is "true" or "false"`, flag.Name, invalid.GetValue())
		}
	}
	return usage("%v; %s --help lists what is allowed", err, strings.Replace(c.CommandPath(), Name, called, 1))
}
