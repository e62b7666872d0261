// Command notes prints what the changelog says of a version.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/cnpg-i/scale-to-zero/e2e/changelog"
)

func main() {
	version := flag.String("version", "", "version, such as v1.2.3")
	file := flag.String("file", "../CHANGELOG.md", "the changelog")
	flag.Parse()
	text, err := os.ReadFile(*file)
	if err == nil {
		var section string
		if section, err = changelog.Section(string(text), *version); err == nil {
			fmt.Print(section)
			return
		}
	}
	fmt.Fprintln(os.Stderr, "notes:", err)
	os.Exit(1)
}
