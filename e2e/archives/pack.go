package archives

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// file is one of an archive: its name there, its mode, and where its content is.
type file struct {
	name string
	mode fs.FileMode
	path string
}

// epoch is the time of everything in an archive: the first that a zip file can tell.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// write makes the file an archive; one that is not complete is removed.
func write(path string, pack func(io.Writer, []file) error, files []file) error {
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("make the archive: %w", err)
	}
	if err := errors.Join(pack(out, files), out.Close()); err != nil {
		return errors.Join(fmt.Errorf("write the archive: %w", err), os.Remove(path))
	}
	return nil
}

func packTar(out io.Writer, files []file) error {
	compressed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		content, err := os.ReadFile(f.path)
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode), Size: int64(len(content)), ModTime: epoch}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(content); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

func packZip(out io.Writer, files []file) error {
	archive := zip.NewWriter(out)
	archive.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(w, flate.BestCompression)
	})
	for _, f := range files {
		content, err := os.ReadFile(f.path)
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: epoch}
		header.SetMode(f.mode)
		entry, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := entry.Write(content); err != nil {
			return err
		}
	}
	return archive.Close()
}
