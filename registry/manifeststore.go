package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// maxMediaType bounds the media type that is kept with a manifest, in bytes.
const maxMediaType = 255

// putManifest stores a manifest and, if they are given, its tag and its place
// among the referrers of its subject.
//
// The referrer is written first and the tag last: after a crash between, a
// referrer without a manifest is passed over and an untagged manifest does no
// harm.
func (s *store) putManifest(repo string, d digest, mediaType string, body []byte, subject digest, tag string) error {
	mu := s.repos.of(repo)
	mu.Lock()
	defer mu.Unlock()
	if err := s.makeRepo(repo); err != nil {
		return err
	}
	if !subject.isZero() {
		if err := s.writeFile(path.Join(referrersPath(repo, subject), d.String())); err != nil {
			return err
		}
	}
	if err := s.writeFile(manifestPath(repo, d), []byte(mediaType+"\n"), body); err != nil {
		return err
	}
	if tag == "" {
		return nil
	}
	return s.writeFile(tagPath(repo, tag), []byte(d.String()))
}

// manifest returns a manifest and its media type.
func (s *store) manifest(repo string, d digest) (mediaType string, body []byte, err error) {
	name := manifestPath(repo, d)
	p, err := s.readFile(name, maxMediaType+1+MaxManifest)
	if err != nil {
		return "", nil, err
	}
	line, body, ok := bytes.Cut(p, []byte("\n"))
	if !ok {
		return "", nil, fmt.Errorf("%s: no line with a media type", name)
	}
	return string(line), body, nil
}

// hasManifest reports whether a manifest is in a repository.
func (s *store) hasManifest(repo string, d digest) (bool, error) {
	return s.exists(manifestPath(repo, d))
}

// resolve returns the digest that a tag stands for.
func (s *store) resolve(repo, tag string) (digest, error) {
	name := tagPath(repo, tag)
	p, err := s.readFile(name, 256)
	if err != nil {
		return digest{}, err
	}
	d, err := parseDigest(string(p))
	if err != nil {
		return digest{}, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}

// deleteTag removes a tag and nothing else.
func (s *store) deleteTag(repo, tag string) error {
	mu := s.repos.of(repo)
	mu.Lock()
	defer mu.Unlock()
	return s.root.Remove(tagPath(repo, tag))
}

// deleteManifest removes a manifest, the tags that stand for it, and its place
// among the referrers of its subject.
func (s *store) deleteManifest(repo string, d, subject digest) error {
	mu := s.repos.of(repo)
	mu.Lock()
	defer mu.Unlock()
	if err := s.root.Remove(manifestPath(repo, d)); err != nil {
		return err
	}
	if !subject.isZero() {
		err := s.root.Remove(path.Join(referrersPath(repo, subject), d.String()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	tags, err := s.tags(repo)
	if err != nil {
		return err
	}
	for _, tag := range tags {
		target, err := s.resolve(repo, tag)
		if err != nil {
			return err
		}
		if target != d {
			continue
		}
		if err := s.root.Remove(tagPath(repo, tag)); err != nil {
			return err
		}
	}
	return nil
}

// tags returns the tags of a repository, sorted by their bytes.
func (s *store) tags(repo string) ([]string, error) {
	return s.names(repoPath(repo, tagsDir))
}

// referrers returns the digests of the manifests that have the given subject,
// sorted. A crash can have left some that are not there.
func (s *store) referrers(repo string, subject digest) ([]digest, error) {
	dir := referrersPath(repo, subject)
	names, err := s.names(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	digests := make([]digest, len(names))
	for i, name := range names {
		if digests[i], err = parseDigest(name); err != nil {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
	}
	return digests, nil
}

// repositories returns the names of all known repositories, sorted.
func (s *store) repositories() ([]string, error) {
	var repos []string
	err := fs.WalkDir(s.root.FS(), reposDir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(e.Name(), "_") {
			return err
		}
		if e.Name() == tagsDir {
			repos = append(repos, strings.TrimPrefix(path.Dir(name), reposDir+"/"))
		}
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	slices.Sort(repos) // the walk sorts by component
	return repos, err
}

// names returns the names in a directory, sorted.
func (s *store) names(dir string) ([]string, error) {
	entries, err := fs.ReadDir(s.root.FS(), dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// readFile returns the content of a file, which is an error above max bytes.
func (s *store) readFile(name string, max int64) ([]byte, error) {
	f, err := s.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > max {
		return nil, fmt.Errorf("%s: %d bytes, more than %d", name, info.Size(), max)
	}
	p := make([]byte, info.Size())
	if _, err := io.ReadFull(f, p); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}
