package dht

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"graze/chunk"
)

const (
	lastViewVersion = 1
	maxLastView     = 16 << 20
	// lastViewAge is how old a view may be for its members to count as members;
	// of an older one only the addresses are used.
	lastViewAge = 24 * time.Hour
)

// A lastView is the last view as it lies on disk, in JSON.
type lastView struct {
	Version int          `json:"version"`
	Saved   time.Time    `json:"saved"`
	Members []lastMember `json:"members"`
}

type lastMember struct {
	ID       string `json:"id"`
	Gossip   string `json:"gossip"`
	Metadata []byte `json:"metadata"` // as in gossip
}

// decodeLastView reads a view and returns its members without those that can't
// be read. Source names the file in errors.
func decodeLastView(source string, p []byte) (members []Member, saved time.Time, err error) {
	if len(p) > maxLastView {
		return nil, time.Time{}, fmt.Errorf("last view %s: more than %d bytes", source, maxLastView)
	}
	var v lastView
	if err := json.Unmarshal(p, &v); err != nil {
		return nil, time.Time{}, fmt.Errorf("last view %s: %w", source, err)
	}
	if v.Version != lastViewVersion {
		return nil, time.Time{}, fmt.Errorf("last view %s: version %d, not %d", source, v.Version, lastViewVersion)
	}
	for _, l := range v.Members[:min(len(v.Members), MaxMembers)] {
		m, err := decodeMetadata(l.ID, l.Metadata)
		if err != nil || checkID(l.ID) != nil || checkHostPort("gossip address", l.Gossip) != nil {
			continue
		}
		m.ID, m.Gossip = chunk.PeerID(l.ID), l.Gossip
		members = append(members, m)
	}
	return members, v.Saved, nil
}

// readLastView reads the view at path; none is no error.
func readLastView(path string) ([]Member, time.Time, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("last view: %w", err)
	}
	defer f.Close()
	p, err := io.ReadAll(io.LimitReader(f, maxLastView+1))
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("last view: %w", err)
	}
	return decodeLastView(path, p)
}

// writeLastView replaces the view at path by v's members without the node
// itself.
func writeLastView(path string, v *View) (err error) {
	last := lastView{Version: lastViewVersion, Saved: time.Now().UTC()}
	for i := range v.members {
		m := &v.members[i]
		if int32(i) == v.self {
			continue
		}
		meta, err := encodeMetadata(m)
		if err != nil {
			return fmt.Errorf("last view: %w", err)
		}
		last.Members = append(last.Members, lastMember{string(m.ID), m.Gossip, meta})
	}
	p, err := json.Marshal(last)
	if err != nil {
		return fmt.Errorf("last view: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp*")
	if err != nil {
		return fmt.Errorf("last view: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("last view: %w", err)
		}
	}()
	if _, err := f.Write(p); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
