package node

import (
	"time"

	"graze/node/adminpb"
)

// ContainerdStats tell what containerd was answered.
type ContainerdStats struct {
	// Layers counts those that were pulled, by why they are served as they are:
	// "lazy", or one of the reasons of package snapshotter.
	Layers map[string]int64 `json:"layers"`

	// Views is how many views of images containers use. Each is one mount.
	Views int `json:"views"`

	// Images are the last that were pulled, the latest first.
	Images []PulledImage `json:"images"`
}

// A PulledImage is an image that containerd has asked for.
type PulledImage struct {
	Name   string    `json:"name"` // by digest, if that is known
	Reason string    `json:"reason"`
	Error  string    `json:"error,omitempty"`
	Time   time.Time `json:"time"`
}

// stats returns the snapshotter's figures.
func (s *snapshots) stats() ContainerdStats {
	st := s.Stats()
	out := ContainerdStats{Layers: map[string]int64{}, Views: st.Views, Images: []PulledImage{}}
	for reason, n := range st.Layers {
		out.Layers[string(reason)] = n
	}
	for _, i := range st.Images {
		out.Images = append(out.Images, PulledImage{Name: i.Name, Reason: string(i.Reason), Error: i.Err, Time: i.Time})
	}
	return out
}

// containerdToPB and containerdFromPB translate ContainerdStats.
func containerdToPB(s *ContainerdStats) *adminpb.Containerd {
	out := &adminpb.Containerd{Layers: s.Layers, Views: int64(s.Views)}
	for _, i := range s.Images {
		out.Images = append(out.Images, &adminpb.PulledImage{Name: i.Name, Reason: i.Reason, Error: i.Error, TimeUnix: i.Time.Unix()})
	}
	return out
}

func containerdFromPB(p *adminpb.Containerd) ContainerdStats {
	out := ContainerdStats{Layers: p.GetLayers(), Views: int(p.GetViews()), Images: []PulledImage{}}
	for _, i := range p.GetImages() {
		out.Images = append(out.Images, PulledImage{Name: i.GetName(), Reason: i.GetReason(), Error: i.GetError(), Time: time.Unix(i.GetTimeUnix(), 0)})
	}
	return out
}
