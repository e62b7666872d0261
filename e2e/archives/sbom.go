package archives

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strings"
)

// sbomEnding is what the name of an archive's SBOM ends with.
const sbomEnding = ".spdx.json"

// spdx is a document of SPDX 2.3 (https://spdx.github.io/spdx-spec/v2.3/).
type spdx struct {
	Version       string             `json:"spdxVersion"`
	DataLicense   string             `json:"dataLicense"`
	ID            string             `json:"SPDXID"`
	Name          string             `json:"name"`
	Namespace     string             `json:"documentNamespace"`
	Creation      spdxCreation       `json:"creationInfo"`
	Packages      []spdxPackage      `json:"packages"`
	Relationships []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string          `json:"SPDXID"`
	Name             string          `json:"name"`
	Version          string          `json:"versionInfo"`
	File             string          `json:"packageFileName,omitempty"`
	Download         string          `json:"downloadLocation"`
	FilesAnalyzed    bool            `json:"filesAnalyzed"`
	Checksums        []spdxChecksum  `json:"checksums,omitempty"`
	LicenseConcluded string          `json:"licenseConcluded"`
	LicenseDeclared  string          `json:"licenseDeclared"`
	Copyright        string          `json:"copyrightText"`
	References       []spdxReference `json:"externalRefs"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxReference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	spdxDocument = "SPDXRef-DOCUMENT"
	spdxArchive  = "SPDXRef-archive"
	// unsaid is what SPDX has for a field about which nothing is said. The licences themselves are in the archive.
	unsaid = "NOASSERTION"
)

// modules are those that a program is linked from, Go's own library last, as the program says itself.
func modules(binary string) ([]debug.Module, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("read what the program is linked from: %w", err)
	}
	var linked []debug.Module
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		linked = append(linked, debug.Module{Path: module.Path, Version: module.Version})
	}
	return append(linked, debug.Module{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}), nil
}

// sbom describes an archive of the release whose program is linked from these modules. Its time is that of everything in an
// archive, so that the same source gives the same bytes.
func (r Release) sbom(archive Archive, linked []debug.Module) ([]byte, error) {
	address := r.address(archive.Name)
	document := spdx{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: spdxDocument, Name: archive.Name,
		Namespace: address + sbomEnding + "/" + archive.SHA256,
		Creation:  spdxCreation{Created: epoch.Format("2006-01-02T15:04:05Z"), Creators: []string{"Tool: make-archives-" + r.Version}},
		Packages: []spdxPackage{{
			ID: spdxArchive, Name: program, Version: r.Version, File: archive.Name, Download: address,
			Checksums:        []spdxChecksum{{"SHA256", archive.SHA256}},
			LicenseConcluded: unsaid, LicenseDeclared: "Apache-2.0", Copyright: unsaid,
			References: purl("github.com/cnpg-i/scale-to-zero", r.Version),
		}},
		Relationships: []spdxRelationship{{spdxDocument, "DESCRIBES", spdxArchive}},
	}
	for i, module := range linked {
		id := fmt.Sprintf("SPDXRef-module-%d", i+1)
		document.Packages = append(document.Packages, spdxPackage{
			ID: id, Name: module.Path, Version: module.Version, Download: unsaid,
			LicenseConcluded: unsaid, LicenseDeclared: unsaid, Copyright: unsaid, References: purl(module.Path, module.Version),
		})
		document.Relationships = append(document.Relationships, spdxRelationship{spdxArchive, "CONTAINS", id})
	}
	body, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the SBOM: %w", err)
	}
	return append(body, '\n'), nil
}

// purl is by what vulnerability databases know a Go module.
func purl(path, version string) []spdxReference {
	return []spdxReference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}}
}
