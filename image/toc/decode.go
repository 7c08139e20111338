package toc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"graze/chunk"
)

// Name is the name that a table of contents has where it is a file of the
// archive. Such a file is no entry.
const Name = "stargz.index.json"

// ErrUnsupported: the table of contents is well formed, but its layer can't be
// served chunk by chunk: a chunk has no digest, or is too large.
var ErrUnsupported = errors.New("unsupported table of contents")

const (
	// maxEntryJSON bounds one entry of the TOC in bytes. Names have at most
	// 4 KiB, extended attributes at most 64 KiB each.
	maxEntryJSON = 4 << 20

	// maxEntries bounds the entries of the TOC. At some 300 bytes each, real
	// TOCs meet MaxTOC first.
	maxEntries = 4 << 20
)

// A entry is an entry of the TOC as its JSON states it. The fields of the
// format that are not here are of no use to a reader. The keys are matched
// without regard to case, and invalid UTF-8 becomes U+FFFD, as in the programs
// that define the format.
type entry struct {
	Name        string            `json:"name"`
	Type        string            `json:"type"`
	Size        int64             `json:"size"`
	ModTime     string            `json:"modtime"`
	LinkName    string            `json:"linkName"`
	Mode        int64             `json:"mode"` // as in a tar header
	UID         int64             `json:"uid"`
	GID         int64             `json:"gid"`
	DevMajor    int64             `json:"devMajor"`
	DevMinor    int64             `json:"devMinor"`
	Xattrs      map[string][]byte `json:"xattrs"`
	Digest      string            `json:"digest"`      // of the whole file
	Offset      int64             `json:"offset"`      // of the member, in the layer
	InnerOffset int64             `json:"innerOffset"` // of the chunk, in the decoded member
	ChunkOffset int64             `json:"chunkOffset"` // of the chunk, in the file
	ChunkSize   int64             `json:"chunkSize"`   // 0: to the end of the file
	ChunkDigest string            `json:"chunkDigest"`
	ChunkType   string            `json:"chunkType"` // "", or "zeros"
}

// corrupt makes err wrap ErrCorrupt, unless it is about the kind of layer.
func corrupt(err error) error {
	if errors.Is(err, chunk.ErrCorrupt) || errors.Is(err, ErrUnsupported) {
		return err
	}
	return fmt.Errorf("%w: %w", chunk.ErrCorrupt, err)
}

// decode parses the JSON from r to its end and adds each entry to b. It holds one
// entry at a time.
func decode(r io.Reader, b *builder) error {
	d := decoder{src: budget{r: r}}
	d.json = json.NewDecoder(&d.src)
	if err := d.document(b); err != nil {
		return corrupt(fmt.Errorf("JSON at %d: %w", d.json.InputOffset(), err))
	}
	return nil
}

// A decoder reads a TOC value by value.
type decoder struct {
	json *json.Decoder
	src  budget
}

// document parses the outermost object. Keys that it doesn't know are skipped.
func (d *decoder) document(b *builder) error {
	if err := d.delim('{'); err != nil {
		return err
	}
	var version, entries bool
	for d.more() {
		key, err := d.json.Token()
		if err != nil {
			return err
		}
		switch key {
		case "version":
			var v int
			if err := d.value(&v); err != nil {
				return err
			}
			if v != 1 {
				return fmt.Errorf("%w: TOC version %d", ErrUnsupported, v)
			}
			version = true
		case "entries":
			if entries {
				return errors.New("two lists of entries")
			}
			entries = true
			if err := d.entries(b); err != nil {
				return err
			}
		default:
			var skipped json.RawMessage
			if err := d.value(&skipped); err != nil {
				return err
			}
		}
	}
	if err := d.delim('}'); err != nil {
		return err
	}
	if !version || !entries {
		return errors.New("no version or no entries")
	}
	if d.more() {
		return errors.New("more after the TOC")
	}
	if _, err := d.json.Token(); err != io.EOF {
		return fmt.Errorf("after the TOC: %w", err)
	}
	return nil
}

// entries parses the list of entries, or null, which stands for none.
func (d *decoder) entries(b *builder) error {
	d.src.allow(d.json.InputOffset())
	tok, err := d.json.Token()
	if tok == nil && err == nil {
		return b.endFile()
	}
	if err != nil {
		return err
	}
	if tok != json.Delim('[') {
		return fmt.Errorf("%v in place of a list of entries", tok)
	}
	for n := 0; d.more(); n++ {
		if n == maxEntries {
			return fmt.Errorf("%w: more than %d entries", ErrUnsupported, maxEntries)
		}
		var e entry
		if err := d.value(&e); err != nil {
			return fmt.Errorf("entry number %d: %w", n, err)
		}
		if err := b.add(&e); err != nil {
			return fmt.Errorf("entry %.200q: %w", e.Name, err)
		}
	}
	if err := d.delim(']'); err != nil {
		return err
	}
	return b.endFile()
}

func (d *decoder) more() bool {
	d.src.allow(d.json.InputOffset())
	return d.json.More()
}

func (d *decoder) value(v any) error {
	d.src.allow(d.json.InputOffset())
	return d.json.Decode(v)
}

// delim parses the delimiter want.
func (d *decoder) delim(want json.Delim) error {
	d.src.allow(d.json.InputOffset())
	tok, err := d.json.Token()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("%v in place of %v", tok, want)
	}
	return nil
}

// A budget reads from r as far as it is allowed to. The JSON decoder holds a
// whole value in memory, so that this bounds the value.
type budget struct {
	r        io.Reader
	n, limit int64
}

// allow permits reading of one more value, which starts at off.
func (b *budget) allow(off int64) { b.limit = off + maxEntryJSON }

func (b *budget) Read(p []byte) (int, error) {
	if b.n >= b.limit {
		return 0, fmt.Errorf("%w: a value of more than %d bytes", ErrUnsupported, maxEntryJSON)
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.limit-b.n)])
	b.n += int64(n)
	return n, err
}
