package command

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/cnpg-i/scale-to-zero/plugin/clusterstate"
)

// outputWide requests more columns, outputName the names only, and outputHTML a page; each is supported by one command.
const outputWide, outputName, outputHTML = "wide", "name", "html"

// annotationAlso has what a command supports besides what all do, separated by spaces.
const annotationAlso = "also"

// outputs returns the values of --output that a command supports; one that ends with an equals sign is followed by a
// template.
func outputs(c *cobra.Command) []string {
	known := genericclioptions.NewJSONYamlPrintFlags().AllowedFormats()
	for _, format := range genericclioptions.NewJSONPathPrintFlags("", true).AllowedFormats() {
		known = append(known, format+"=")
	}
	known = append(known, strings.Fields(c.Annotations[annotationAlso])...)
	slices.Sort(known)
	return known
}

// chooseOutput sets the printer for --output; nil means text.
func (p *program) chooseOutput(c *cobra.Command) error {
	if p.output == "" || slices.Contains(strings.Fields(c.Annotations[annotationAlso]), p.output) {
		return nil
	}
	for _, flags := range []interface {
		ToPrinter(format string) (printers.ResourcePrinter, error)
	}{genericclioptions.NewJSONYamlPrintFlags(), genericclioptions.NewJSONPathPrintFlags("", true)} {
		printer, err := flags.ToPrinter(p.output)
		if genericclioptions.IsNoCompatiblePrinterError(err) {
			continue
		}
		if err != nil {
			return usage("--output is %q: %v", p.output, err)
		}
		p.printer = printer
		return nil
	}
	return usage("--output is %q; it must be %s, or nothing for text", p.output, strings.Join(outputs(c), ", "))
}

// completeOutput completes the values of --output; after an equals sign the user types the template.
func completeOutput(c *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	proposals := slices.DeleteFunc(outputs(c), func(format string) bool { return !strings.HasPrefix(format, typed) })
	directive := cobra.ShellCompDirectiveNoFileComp
	if slices.ContainsFunc(proposals, func(format string) bool { return strings.HasSuffix(format, "=") }) {
		directive |= cobra.ShellCompDirectiveNoSpace
	}
	return proposals, directive
}

// write writes the value with the printer, or the text.
func (p *program) write(value any, text string) error {
	if p.printer != nil {
		return p.print(value)
	}
	if _, err := io.WriteString(p.Out, text); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

func (p *program) print(value any) error {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	// The printers require a Kubernetes object, and print a runtime.Unknown as it is.
	if err := p.printer.PrintObj(&runtime.Unknown{Raw: body}, p.Out); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// printable replaces control characters in text from elsewhere, such as a client's application name, which could
// otherwise control the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// cell formats a text for a table: a single line, never empty.
func cell(text string) string {
	return cmp.Or(strings.ReplaceAll(printable(text), "\n", " "), "-")
}

func ago(at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return duration.HumanDuration(max(now.Sub(at), 0)) + " ago"
}

func long(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return duration.HumanDuration(time.Duration(max(*seconds, 0) * float64(time.Second)))
}

// plain is the colour of states without another, and of the header. All colours have the same length, which keeps the
// columns of a table aligned.
const plain, green, yellow, blue = "\x1b[39m", "\x1b[32m", "\x1b[33m", "\x1b[34m"

var colours = map[clusterstate.State]string{
	clusterstate.Awake: green, clusterstate.Observed: green, clusterstate.Asleep: blue, clusterstate.Dozing: blue,
	clusterstate.AsleepByHand: yellow, clusterstate.Going: yellow, clusterstate.Waking: yellow,
}

// colourful reports whether to use colours: on a terminal that supports them, unless NO_COLOR is set (no-color.org).
func colourful(out io.Writer, getenv func(string) string) bool {
	file, ok := out.(*os.File)
	// A file descriptor is small.
	return ok && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

func paint(colourful bool, state clusterstate.State, text string) string {
	if !colourful {
		return text
	}
	return cmp.Or(colours[state], plain) + text + "\x1b[0m"
}
