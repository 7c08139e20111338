package image

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// WriteView merges layers, the lowest first, and writes their view to a file.
// It is replaced in one step if it exists: whoever opens it, even after a power
// cut, finds the old file or the whole new one. A temporary file beside it can
// be left behind by a crash; its name is that of the file and ".tmp-" with
// digits.
//
// A layer that is malformed, hostile or beyond the limits is an error that names
// the layer and, if it is one entry's fault, the entry.
func WriteView(path string, layers []*Layer, info Info) error {
	w, err := newViewWriter(layers, info)
	if err == nil {
		err = replaceFile(path, w.writeFile)
	}
	if err != nil {
		return fmt.Errorf("write view %s: %w", path, err)
	}
	return nil
}

// replaceFile makes a new file with what write writes, durably and in one step.
func replaceFile(path string, write func(*os.File) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

// syncDir makes renames in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// A viewWriter writes a view file, section by section.
type viewWriter struct {
	tree  *tree
	num   *numbering
	table *joined
	info  []byte

	row []byte // reused
}

// newViewWriter merges layers.
func newViewWriter(layers []*Layer, info Info) (*viewWriter, error) {
	meta, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("info: %w", err)
	}
	if len(meta) > maxInfo {
		return nil, fmt.Errorf("info of %d bytes", len(meta))
	}
	t, root, shifts, err := merge(layers)
	if err != nil {
		return nil, err
	}
	num := t.number(root)
	table := join(layers, shifts, t.usedChunks(num, layers))
	return &viewWriter{tree: t, num: num, table: table, info: meta}, nil
}

// writeFile writes the view to a new file. The header goes last, when it is
// known.
func (w *viewWriter) writeFile(f *os.File) error {
	if _, err := f.Seek(int64(headerSize), io.SeekStart); err != nil {
		return err
	}
	out := bufio.NewWriterSize(f, 1<<18)
	h := w.write(out)
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := f.WriteAt(h.encode(), 0)
	return err
}

// write writes the sections and returns the header for them. It leaves errors
// to out, which keeps the first.
func (w *viewWriter) write(out *bufio.Writer) (h header) {
	for i, section := range [numSections]func(put func([]byte)){
		secInodes:    w.writeInodes,
		secDirents:   w.writeDirents,
		secNames:     w.writeNames,
		secExtents:   w.writeExtents,
		secLinks:     w.writeLinks,
		secXattrs:    w.writeXattrs,
		secXattrEnds: w.writeXattrEnds,
		secBlobs:     w.writeBlobs,
		secSpans:     w.writeSpans,
		secChunks:    w.writeChunks,
		secPrefetch:  w.writePrefetch,
		secInfo:      func(put func([]byte)) { put(w.info) },
	} {
		var n int64
		var crc uint32
		section(func(p []byte) {
			n += int64(len(p))
			crc = crc32.Update(crc, castagnoli, p)
			out.Write(p)
		})
		h.lens[i], h.crcs[i] = n, crc
	}
	return h
}

func (w *viewWriter) writeInodes(put func([]byte)) {
	var extents, links uint32
	for i, ino := range w.num.inodes[RootIno:] {
		n := w.tree.inodes.at(ino)
		r := inodeRec{
			mode: n.mode, uid: n.uid, gid: n.gid, nlink: w.num.nlinks[i+RootIno],
			size: n.size, sec: n.sec, nsec: n.nsec,
			xattrs: w.num.xattrNums[n.xattrs], a: n.a, b: n.b,
		}
		switch n.mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			r.a = extents
			extents += n.b
		case syscall.S_IFLNK:
			r.a = links
			links += n.b
		}
		w.row = r.append(w.row[:0])
		put(w.row)
	}
}

func (w *viewWriter) writeDirents(put func([]byte)) {
	var end uint32
	for _, e := range w.num.dirents {
		d := w.tree.dirents.at(e)
		end += uint32(d.len)
		w.row = appendDirent(w.row[:0], w.num.numbers[d.ino], end)
		put(w.row)
	}
}

func (w *viewWriter) writeNames(put func([]byte)) {
	for _, e := range w.num.dirents {
		put(w.tree.name(w.tree.dirents.at(e)))
	}
}

func (w *viewWriter) writeExtents(put func([]byte)) {
	for _, ino := range w.num.inodes[RootIno:] {
		for _, x := range w.tree.extentsOf(ino) {
			e := *x
			e.Chunk = w.table.chunks[e.Chunk]
			w.row = appendExtent(w.row[:0], e)
			put(w.row)
		}
	}
}

func (w *viewWriter) writeLinks(put func([]byte)) {
	for _, ino := range w.num.inodes[RootIno:] {
		if n := w.tree.inodes.at(ino); n.is(syscall.S_IFLNK) {
			put(w.tree.links[n.a:][:n.b])
		}
	}
}

func (w *viewWriter) writeXattrs(put func([]byte)) {
	for _, n := range w.num.xattrSets {
		put(w.tree.xattrs.set(n))
	}
}

func (w *viewWriter) writeXattrEnds(put func([]byte)) {
	var end uint32
	for _, n := range w.num.xattrSets {
		end += uint32(len(w.tree.xattrs.set(n)))
		w.row = le.AppendUint32(w.row[:0], end)
		put(w.row)
	}
}

func (w *viewWriter) writeBlobs(put func([]byte)) {
	for _, b := range w.table.blobs {
		w.row = append(append(w.row[:0], byte(len(b))), b...)
		put(w.row)
	}
}

func (w *viewWriter) writeSpans(put func([]byte)) {
	w.table.eachSpan(func(s SpanRow) {
		w.row = appendSpan(w.row[:0], s)
		put(w.row)
	})
}

func (w *viewWriter) writeChunks(put func([]byte)) {
	w.table.eachChunk(func(c ChunkRow) {
		w.row = appendChunk(w.row[:0], c)
		put(w.row)
	})
}

func (w *viewWriter) writePrefetch(put func([]byte)) {
	w.table.eachPrefetch(func(n uint32) {
		w.row = le.AppendUint32(w.row[:0], n)
		put(w.row)
	})
}
