package command

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// diagnosis is the output of doctor.
type diagnosis struct {
	Findings []finding `json:"findings"`
	// Unread is what the command cannot read, and why.
	Unread []string `json:"unread"`
	// Archive is the file that was written; absent without one.
	Archive string `json:"archive,omitempty"`
}

// errFound means that doctor has found something wrong.
var errFound = errors.New("doctor has found something wrong")

func (p *program) doctorCommand() *cobra.Command {
	everywhere, lookOnly, redacted, path := false, false, false, ""
	c := &cobra.Command{
		Use: "doctor [CLUSTER | -A]", Short: "Say what is wrong, and collect what a bug report needs in an archive",
		Long: `Say what is wrong with the plugin and with the clusters, each with the page that helps, and write an archive for
a bug report: versions, settings, Clusters, pods, Events, logs, metrics, what explain says, and the plugin's
EndpointSlices and ports. The command reads no Secret, and leaves out environment variables whose name is that of a
secret. With --redact it also replaces addresses and the names of users and databases; the same one always becomes the
same word.`,
		ValidArgsFunction: p.completeCluster,
		RunE: func(c *cobra.Command, arguments []string) error {
			now := time.Now()
			directory := "scale-to-zero-doctor-" + now.UTC().Format("20060102T150405Z")
			if !c.Flags().Changed("archive") {
				path = directory + ".tar.gz"
			}
			_, err := os.Lstat(path)
			switch {
			case len(arguments) > 1 || len(arguments) == 1 && everywhere:
				return usage("doctor takes one CLUSTER at most, and none with --all-namespaces")
			case lookOnly && (redacted || c.Flags().Changed("archive")):
				return usage("--no-archive cannot be combined with --archive or --redact")
			case path == "" || err == nil:
				return usage("--archive is %q; allowed is the name of a file that does not exist", path)
			}
			a, err := p.connect()
			if err != nil {
				return err
			}
			which := choice{namespace: a.namespace, name: strings.Join(arguments, "")}
			if everywhere {
				which.namespace = ""
			}
			clusters, err := a.clusters(c.Context(), which)
			if err != nil {
				return err
			}
			var out *os.File
			answer := diagnosis{}
			if !lookOnly { // before the findings, which a file that cannot be created would lose
				if out, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
					return fmt.Errorf("create the archive: %w", err)
				}
				defer func() {
					if answer.Archive == "" {
						_ = out.Close() // it may be closed
						_ = os.Remove(path)
					}
				}()
			}
			collected := &collector{access: a, archives: !lookOnly, versions: map[string]any{"command": p.version}}
			findings := judge(collected.collect(c.Context(), which, clusters, now))
			answer.Findings, answer.Unread = findings, append([]string{}, collected.unread...)
			if err := c.Context().Err(); err != nil {
				return fmt.Errorf("read the clusters: %w", err)
			}
			var failure error
			if !lookOnly {
				if failure = collected.write(out, directory, answer, redacted, now); failure == nil {
					answer.Archive = path
				}
			}
			if err := cmp.Or(p.write(answer, answer.text), failure); err != nil || len(answer.Findings) == 0 {
				return err
			}
			return errFound
		},
	}
	c.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, describeEverywhere)
	c.Flags().StringVar(&path, "archive", "",
		"a file to write, which must not exist (default scale-to-zero-doctor-TIME.tar.gz)")
	c.Flags().BoolVar(&lookOnly, "no-archive", false, "only say what is wrong")
	c.Flags().BoolVar(&redacted, "redact", false, "replace addresses and the names of users and databases in the archive")
	return c
}

// text writes the findings, one a line.
func (d diagnosis) text(out io.Writer) {
	for _, f := range d.Findings {
		_, _ = fmt.Fprintf(out, "%s (%s).\n", strings.TrimSuffix(cell(f.Problem), "."), f.Page)
	}
	if len(d.Findings) == 0 {
		_, _ = fmt.Fprintln(out, "The command finds nothing wrong.")
	}
	for _, problem := range d.Unread {
		_, _ = fmt.Fprintln(out, cell(problem)+".")
	}
	if d.Archive != "" {
		_, _ = fmt.Fprintf(out, "The archive is %s. Read it before you publish it.\n", d.Archive)
	}
}
