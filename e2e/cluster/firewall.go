package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// What iptables calls its programs of the two families, with nftables' name of the family.
var families = []struct{ save, restore, nft string }{
	{"iptables-save", "iptables-restore", "ip"}, {"ip6tables-save", "ip6tables-restore", "ip6"},
}

// ownChain reports whether Kubernetes made a chain of iptables.
func ownChain(name string) bool { return strings.HasPrefix(name, "KUBE-") }

// swept turns what iptables-save prints into what iptables-restore --noflush needs to remove Kubernetes' chains and the
// rules that lead to them, and nothing else; and names the tables that hold nothing after that.
func swept(saved string) (orders string, empty []string) {
	var out strings.Builder
	table, foreign := "", false
	var rules, chains []string
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table, foreign, rules, chains = line[1:], false, nil, nil
		case strings.HasPrefix(line, ":") && len(fields) > 1:
			switch name := fields[0][1:]; {
			case ownChain(name):
				chains = append(chains, name)
			case fields[1] != "ACCEPT": // a chain of somebody else's, or a policy that somebody set
				foreign = true
			}
		case strings.HasPrefix(line, "-A ") && len(fields) > 1:
			switch jump := slices.Index(fields, "-j"); {
			case ownChain(fields[1]): // goes with its chain
			case jump > 0 && jump+1 < len(fields) && ownChain(fields[jump+1]):
				rules = append(rules, "-D"+line[2:])
			default:
				foreign = true
			}
		case line == "COMMIT":
			if len(chains) > 0 {
				fmt.Fprintf(&out, "*%s\n", table)
				for _, chain := range chains { // with --noflush, to declare a chain is to empty it
					fmt.Fprintf(&out, ":%s - [0:0]\n", chain)
				}
				for _, rule := range rules {
					fmt.Fprintln(&out, rule)
				}
				for _, chain := range chains {
					fmt.Fprintln(&out, "-X", chain)
				}
				fmt.Fprintln(&out, "COMMIT")
			}
			if !foreign {
				empty = append(empty, table)
			}
		}
	}
	return out.String(), empty
}

// nftTables lists the machine's tables, each as family and name.
func nftTables(ctx context.Context) ([]string, error) {
	listed, err := do(ctx, "nft", "list", "tables")
	if err != nil {
		return nil, err
	}
	var tables []string
	for line := range strings.Lines(listed) {
		tables = append(tables, strings.TrimPrefix(strings.TrimSpace(line), "table "))
	}
	return tables, nil
}

// noteTables writes down which tables there are before the cluster, because iptables makes its own and leaves them.
func (l Layout) noteTables(ctx context.Context) error {
	tables, err := nftTables(ctx)
	if err != nil {
		return err
	}
	return writeFile(l.run("nft-tables"), strings.Join(tables, "\n"))
}

// removeRules removes the chains and tables of kube-proxy, of the kubelet and of network.
func (l Layout) removeRules(ctx context.Context) error {
	before, err := os.ReadFile(l.run("nft-tables"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was begun
	}
	if err != nil {
		return fmt.Errorf("read which tables there were: %w", err)
	}
	var failures []error
	doomed := []string{"inet " + filterTable, "ip kube-proxy", "ip6 kube-proxy"}
	for _, family := range families {
		saved, err := do(ctx, family.save)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		orders, empty := swept(saved)
		if orders != "" {
			if _, err := doWith(ctx, orders, family.restore, "--noflush"); err != nil {
				failures = append(failures, err)
				continue
			}
		}
		for _, table := range empty {
			if name := family.nft + " " + table; !slices.Contains(strings.Split(string(before), "\n"), name) {
				doomed = append(doomed, name)
			}
		}
	}
	present, err := nftTables(ctx)
	failures = append(failures, err)
	for _, table := range present {
		if slices.Contains(doomed, table) {
			_, err := do(ctx, "nft", append([]string{"delete", "table"}, strings.Fields(table)...)...)
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}
