package images

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Layer writes the files of one layer.
type Layer func(*tar.Writer) error

// File describes a file of a layer; all belong to root.
type File struct {
	// Name is the path in the image, without the slash at its beginning.
	Name string
	// Mode has the permissions, and fs.ModeDir for a directory.
	Mode fs.FileMode
	// Content is what is in it, unless From names a file to copy, or Link what a symbolic link leads to.
	Content    []byte
	From, Link string
}

// Files is a layer of the described files, in the given order: a directory stands before what is in it.
func Files(files ...File) Layer {
	return func(layer *tar.Writer) error {
		for _, file := range files {
			if err := file.write(layer); err != nil {
				return fmt.Errorf("write %s: %w", file.Name, err)
			}
		}
		return nil
	}
}

func (f File) write(layer *tar.Writer) error {
	header := &tar.Header{
		Name: f.Name, Mode: int64(f.Mode.Perm()), ModTime: epoch, Format: tar.FormatPAX, Typeflag: tar.TypeReg, Size: int64(len(f.Content)),
	}
	if f.Mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	switch {
	case f.Mode.IsDir():
		header.Typeflag, header.Name, header.Size = tar.TypeDir, f.Name+"/", 0
	case f.Link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.Link, 0o777
	case f.From != "":
		info, err := os.Stat(f.From)
		if err != nil {
			return err
		}
		header.Size = info.Size()
		return put(layer, header, f.From)
	}
	if err := layer.WriteHeader(header); err != nil {
		return err
	}
	_, err := layer.Write(f.Content[:header.Size])
	return err
}

// put writes a header and, if the header has a size, the content of a file.
func put(layer *tar.Writer, header *tar.Header, path string) error {
	if err := layer.WriteHeader(header); err != nil || header.Size == 0 {
		return err
	}
	content, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	_, err = io.Copy(layer, content)
	return err
}

// Directory is a layer of everything in a directory, with the owners that it has there; devices and sockets are left out.
func Directory(root string) Layer {
	return func(layer *tar.Writer) error {
		return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error { // in the order of names
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(root, path)
			if err != nil || relative == "." {
				return err
			}
			return copyEntry(layer, path, relative, info)
		})
	}
}

func copyEntry(layer *tar.Writer, path, name string, info fs.FileInfo) error {
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	if !info.Mode().IsRegular() && !info.IsDir() && target == "" {
		return nil
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	header.Name, header.ModTime, header.AccessTime, header.ChangeTime = name, epoch, time.Time{}, time.Time{}
	header.Uname, header.Gname, header.Format = "", "", tar.FormatPAX
	if info.IsDir() {
		header.Name += "/"
	}
	return put(layer, header, path)
}
