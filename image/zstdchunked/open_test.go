package zstdchunked

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/zstd"

	"graze/chunk"
	"graze/image"
	"graze/image/imagetest"
	"graze/image/toc"
)

const testBlob = chunk.Blob("sha256:0000000000000000000000000000000000000000000000000000000000000001")

// A ranger is a layer in memory that counts the requests.
type ranger struct {
	p    []byte
	asks int
	fail error // what a request's body ends with, half way
}

func (r *ranger) Size() int64 { return int64(len(r.p)) }

func (r *ranger) ReadRange(_ context.Context, off, n int64) (io.ReadCloser, error) {
	if off < 0 || n < 0 || off > r.Size()-n {
		return nil, fmt.Errorf("range %d+%d of %d bytes", off, n, len(r.p))
	}
	r.asks++
	if r.fail != nil {
		return io.NopCloser(io.MultiReader(bytes.NewReader(r.p[off:off+n/2]), errReader{r.fail})), nil
	}
	return io.NopCloser(bytes.NewReader(r.p[off : off+n])), nil
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// encode returns the first of the odd layers by one of the real writers.
func encode(t testing.TB, e imagetest.Encoding) imagetest.Blob {
	t.Helper()
	b, err := e.Encode(imagetest.Adversarial()[0])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAdversarial opens what the real writers make of odd layers, and compares the
// entries, and the files' contents, with the archive in the layer.
func TestAdversarial(t *testing.T) {
	for _, e := range []imagetest.Encoding{imagetest.ZstdChunked(), imagetest.StargzZstd()} {
		for _, l := range imagetest.Adversarial() {
			t.Run(e.Name+"/"+l.Name, func(t *testing.T) {
				b, err := e.Encode(l)
				if err != nil {
					t.Fatal(err)
				}
				if !Annotated(b.Annotations) {
					t.Errorf("annotations %q say nothing", b.Annotations)
				}
				r := &ranger{p: b.Data}
				got, err := Open(t.Context(), r, Config{Blob: chunk.Blob(b.Digest), Annotations: b.Annotations})
				if err != nil {
					t.Fatal(err)
				}
				if r.asks != 1 || got.Unverified || got.Format != image.ZstdChunked || got.Size != b.Size {
					t.Errorf("%d requests, unverified %t, %s, %d bytes", r.asks, got.Unverified, got.Format, got.Size)
				}
				compareArchive(t, got, b.Data)
			})
		}
	}
}

// compareArchive compares a layer with the archive that blob is.
func compareArchive(t *testing.T, got *Layer, blob []byte) {
	t.Helper()
	if err := imagetest.CheckMembers(&got.Layer, chunk.Zstd); err != nil {
		t.Fatal(err)
	}
	zr, err := zstd.NewReader(bytes.NewReader(blob))
	if err != nil {
		t.Fatal(err)
	}
	defer zr.Close()
	want, files, err := imagetest.ReadArchive(zr)
	if err != nil {
		t.Fatal(err)
	}
	list, err := imagetest.Collect(&got.Layer)
	if err != nil {
		t.Fatal(err)
	}
	ignore := cmpopts.IgnoreFields(image.Entry{}, "Extents")
	if diff := cmp.Diff(want, list, ignore, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	data, err := imagetest.Contents(&got.Layer, blob)
	if err != nil {
		t.Fatal(err)
	}
	for name := range data {
		if !bytes.Equal(data[name], files[name]) {
			t.Errorf("%q has other contents", name)
		}
	}
}

// TestOpenByFooter opens layers whose annotations are lost in part.
func TestOpenByFooter(t *testing.T) {
	for _, e := range []imagetest.Encoding{imagetest.ZstdChunked(), imagetest.StargzZstd()} {
		b := encode(t, e)
		sums := make(map[string]string)
		for key, v := range b.Annotations {
			if strings.HasSuffix(key, checksumKey) {
				sums[key] = v
			}
		}
		for _, tt := range []struct {
			name        string
			annotations map[string]string
			accept      bool
			want        error
		}{
			{"no position", sums, false, nil},
			{"nothing", nil, false, ErrUnverified},
			{"nothing, accept", nil, true, nil},
		} {
			t.Run(e.Name+"/"+tt.name, func(t *testing.T) {
				r := &ranger{p: b.Data}
				l, err := Open(t.Context(), r, Config{Blob: testBlob, Annotations: tt.annotations, Accept: tt.accept})
				if !errors.Is(err, tt.want) {
					t.Fatalf("error %v, want %v", err, tt.want)
				}
				if err != nil {
					return
				}
				if r.asks != 2 || l.Unverified != tt.accept {
					t.Errorf("%d requests, unverified %t", r.asks, l.Unverified)
				}
				compareArchive(t, l, b.Data)
			})
		}
	}
}

// TestOpenRefuses changes the annotations, or the bytes, of good layers.
func TestOpenRefuses(t *testing.T) {
	storage, stargz := encode(t, imagetest.ZstdChunked()), encode(t, imagetest.StargzZstd())
	other := chunk.SHA256.Sum(nil).String()
	tests := []struct {
		name   string
		of     imagetest.Blob
		change func(a map[string]string, p []byte) []byte
		want   error
	}{
		{"other checksum", storage, set(storagePrefix+checksumKey, other), chunk.ErrCorrupt},
		{"bad checksum", storage, set(storagePrefix+checksumKey, "sha256:1"), chunk.ErrCorrupt},
		{"checksum of another kind", storage, set(storagePrefix+checksumKey, chunk.BLAKE3.Sum(nil).String()), chunk.ErrCorrupt},
		{"table of the other dialect too", storage, set(stargzPrefix+checksumKey, other), chunk.ErrCorrupt},
		{"place by the other dialect too", storage, set(stargzPrefix+positionKey, "100:100:100:1"), chunk.ErrCorrupt},
		{"eStargz table too", storage, set(tocDigestKey, other), chunk.ErrCorrupt},
		{"other eStargz table", stargz, set(tocDigestKey, other), chunk.ErrCorrupt},
		{"position of three numbers", stargz, set(stargzPrefix+positionKey, "1:2:3"), chunk.ErrCorrupt},
		{"negative position", stargz, set(stargzPrefix+positionKey, "-1:2:3:1"), chunk.ErrCorrupt},
		{"position past the end", stargz, set(stargzPrefix+positionKey, fmt.Sprintf("100:%d:3:1", stargz.Size)), chunk.ErrCorrupt},
		{"position overflows", stargz, set(stargzPrefix+positionKey, "18446744073709551615:18446744073709551615:3:1"), chunk.ErrCorrupt},
		{"other type", stargz, change(stargzPrefix+positionKey, ":1", ":2"), chunk.ErrCorrupt},
		{"footer names another place", storage, func(_ map[string]string, p []byte) []byte { p[len(p)-storageFooter]++; return p }, chunk.ErrCorrupt},
		{"damaged table", storage, func(a map[string]string, p []byte) []byte { p[offset(a)+20]++; return p }, chunk.ErrCorrupt},
		{"cut off", storage, func(_ map[string]string, p []byte) []byte { return p[:len(p)/2] }, chunk.ErrCorrupt},
		{"no layer of that kind", stargz, func(a map[string]string, p []byte) []byte { clear(a); return p[:len(p)-1] }, ErrNotZstdChunked},
		{"short", stargz, func(a map[string]string, p []byte) []byte { clear(a); return p[:1] }, ErrNotZstdChunked},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := maps.Clone(tt.of.Annotations)
			p := tt.change(a, bytes.Clone(tt.of.Data))
			_, err := Open(t.Context(), &ranger{p: p}, Config{Blob: testBlob, Annotations: a, Accept: true})
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), string(testBlob)) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// set returns a change that sets an annotation.
func set(key, value string) func(map[string]string, []byte) []byte {
	return func(a map[string]string, p []byte) []byte {
		a[key] = value
		return p
	}
}

// change returns a change of the end of an annotation.
func change(key, from, to string) func(map[string]string, []byte) []byte {
	return func(a map[string]string, p []byte) []byte {
		a[key] = strings.TrimSuffix(a[key], from) + to
		return p
	}
}

// offset returns where the table is by the annotations of containers/storage.
func offset(a map[string]string) (off int64) {
	fmt.Sscanf(a[storagePrefix+positionKey], "%d:", &off)
	return off
}

// TestOpenBounds opens tables that are larger than allowed, or than announced.
func TestOpenBounds(t *testing.T) {
	table := []byte(`{"version":1,"entries":[]}`)
	tests := []struct {
		name    string
		decoded int
		max     int64
		want    error
	}{
		{"good", len(table), 0, nil},
		{"larger than announced", len(table) - 1, 0, chunk.ErrCorrupt},
		{"smaller than announced", len(table) + 1, 0, chunk.ErrCorrupt},
		{"larger than allowed", len(table), int64(len(table)) - 1, toc.ErrUnsupported},
		{"announced larger than allowed", 1 << 40, 0, toc.ErrUnsupported},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Open(t.Context(), &ranger{p: layerOf(table, tt.decoded)}, Config{Blob: testBlob, Accept: true, MaxTOC: tt.max})
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
		})
	}
}

// layerOf makes a layer that has nothing but a table, and a footer of stargz that
// says how large it is decoded.
func layerOf(table []byte, decoded int) []byte {
	zw, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	packed := zw.EncodeAll(table, nil)
	p := appendFrame(nil, packed)
	var foot []byte
	for _, n := range []int{frameHeader, len(packed), decoded, typeCRFS} {
		foot = binary.LittleEndian.AppendUint64(foot, uint64(n))
	}
	return appendFrame(p, append(foot, stargzMagic...))
}

// appendFrame appends a skippable frame.
func appendFrame(p, payload []byte) []byte {
	p = append(p, 0x50, 0x2a, 0x4d, 0x18)
	return append(binary.LittleEndian.AppendUint32(p, uint32(len(payload))), payload...)
}

// TestOpenBrokenTransfer checks that an error of the network is told from corrupt
// bytes.
func TestOpenBrokenTransfer(t *testing.T) {
	b := encode(t, imagetest.ZstdChunked())
	broken := errors.New("connection reset")
	for name, annotations := range map[string]map[string]string{"table": b.Annotations, "footer": nil} {
		_, err := Open(t.Context(), &ranger{p: b.Data, fail: broken}, Config{Blob: testBlob, Annotations: annotations, Accept: true})
		if !errors.Is(err, broken) || errors.Is(err, chunk.ErrCorrupt) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// FuzzOpen opens whole layers; what is accepted must keep to the rules of a Table.
func FuzzOpen(f *testing.F) {
	for _, e := range []imagetest.Encoding{imagetest.ZstdChunked(), imagetest.StargzZstd()} {
		b, err := e.Encode(imagetest.SmallFiles("files", 5))
		if err != nil {
			f.Fatal(err)
		}
		for _, prefix := range []string{storagePrefix, stargzPrefix} {
			if b.Annotations[prefix+checksumKey] != "" {
				f.Add(b.Data, prefix, b.Annotations[prefix+checksumKey], b.Annotations[prefix+positionKey])
				f.Add(b.Data, prefix, "", "")
			}
		}
	}
	table := []byte(`{"version":1,"entries":[{"name":"a","type":"dir"}]}`)
	f.Add(layerOf(table, len(table)), "", "", "")
	f.Fuzz(func(t *testing.T, blob []byte, prefix, sum, position string) {
		a := map[string]string{prefix + checksumKey: sum, prefix + positionKey: position}
		l, err := Open(t.Context(), &ranger{p: blob}, Config{Blob: testBlob, Annotations: a, Accept: true, MaxTOC: 1 << 20})
		if err != nil {
			return
		}
		if !l.Unverified && l.TOCDigest.String() != sum {
			t.Errorf("opened by digest %q", sum)
		}
		if err := imagetest.CheckMembers(&l.Layer, chunk.Zstd); err != nil {
			t.Error(err)
		}
	})
}
