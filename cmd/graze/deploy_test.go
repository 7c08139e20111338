package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// A manifest is what matters here of a Kubernetes object.
type manifest struct {
	Kind     string                `json:"kind"`
	Metadata struct{ Name string } `json:"metadata"`
	Data     map[string]string     `json:"data"`
	Spec     struct {
		Template struct {
			Spec struct {
				InitContainers []struct {
					Args         []string `json:"args"`
					VolumeMounts []struct{ Name, MountPath string }
				} `json:"initContainers"`
				Volumes []struct{ Name string }
			} `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

// TestKubernetes does what the pods of deploy/kubernetes.yaml do: with its
// settings, and a host in a folder.
func TestKubernetes(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var sets []manifest
	settings, keys := t.TempDir(), t.TempDir()
	for _, doc := range strings.Split(string(text), "\n---\n") {
		var m manifest
		if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
			t.Fatal(err)
		}
		for name, data := range m.Data {
			if err := os.WriteFile(filepath.Join(settings, name), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if m.Kind == "DaemonSet" {
			sets = append(sets, m)
		}
	}
	graze(t, "key", "new", filepath.Join(keys, "cluster.key"))
	if len(sets) != 2 {
		t.Fatalf("%d DaemonSets", len(sets))
	}
	for _, m := range sets {
		t.Run(m.Metadata.Name, func(t *testing.T) {
			pod := m.Spec.Template.Spec
			places := map[string]string{"/host": t.TempDir(), "/settings": settings, "/key": keys}
			for _, mount := range pod.InitContainers[0].VolumeMounts {
				if places[mount.MountPath] == "" {
					t.Errorf("volume %s is at %s", mount.Name, mount.MountPath)
				}
			}
			if len(pod.Volumes) != len(places) {
				t.Errorf("%d volumes", len(pod.Volumes))
			}
			var args []string
			for _, arg := range pod.InitContainers[0].Args {
				for at, dir := range places {
					if rest, ok := strings.CutPrefix(arg, at); ok {
						arg = dir + rest
					}
				}
				if arg != "--now" { // the host has no systemd
					args = append(args, arg)
				}
			}
			graze(t, args...)
			host := places["/host"]
			for _, file := range []string{"usr/local/bin/graze", "etc/systemd/system/graze.service", "etc/containerd/config.toml"} {
				if _, err := os.Stat(filepath.Join(host, file)); err != nil {
					t.Error(err)
				}
			}
			if st, err := os.Stat(filepath.Join(host, "etc/graze/cluster.key")); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("key: %v, %v", st, err)
			}
			f, err := readNodeFile(filepath.Join(host, "etc/graze/node.toml"))
			if err != nil || f.Cluster.Seed != (m.Metadata.Name == "graze-seed") || len(f.Cluster.Join) == 0 {
				t.Errorf("settings: %+v, %v", f.Cluster, err)
			}
		})
	}
}
