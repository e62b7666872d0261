package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
)

// outputWide requests more columns; only a command with a table supports it.
const outputWide = "wide"

// annotationWide marks the commands that support [outputWide].
const annotationWide = "wide"

// outputs returns the values of --output that a command supports; one that ends with an equals sign is followed by a template.
func outputs(c *cobra.Command) []string {
	known := genericclioptions.NewJSONYamlPrintFlags().AllowedFormats()
	for _, format := range genericclioptions.NewJSONPathPrintFlags("", true).AllowedFormats() {
		known = append(known, format+"=")
	}
	if c.Annotations[annotationWide] != "" {
		known = append(known, outputWide)
	}
	slices.Sort(known)
	return known
}

// chooseOutput sets the printer for --output; nil means text.
func (p *program) chooseOutput(c *cobra.Command) error {
	known := outputs(c)
	if p.output == "" || p.output == outputWide && slices.Contains(known, outputWide) {
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
	return usage("--output is %q; allowed is %s, or nothing for text", p.output, strings.Join(known, ", "))
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

// write writes the value with the printer, or as text.
func (p *program) write(value any, text func(io.Writer)) error {
	if p.printer == nil {
		text(p.Out)
		return nil
	}
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
