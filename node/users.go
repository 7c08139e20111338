package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"graze/cri"
	"graze/origin"
	"graze/origin/credential"
)

// users are those on whose behalf container runtimes pull, as far as they matter:
// what they showed, and whether a registry lets them in.
type users struct {
	client *origin.Client
	shown  *credential.Memory
	own    origin.Keychain // the node's own credentials, without those of users
	vault  *vault          // has what was shown, for the node after this one
	log    *slog.Logger
}

// addUsers puts the credentials of users, if the node is to learn of any, before
// the node's own.
func (c *Config) addUsers() users {
	u := users{shown: new(credential.Memory), own: c.Origin.Keychain, vault: new(vault), log: c.Log}
	if c.CRI != nil {
		chain := credential.Chain{u.shown}
		if u.own != nil {
			chain = append(chain, u.own)
		}
		c.Origin.Keychain = chain
	}
	return u
}

// serveUsers gives the node a proxy of CRI, to which users come. Only a snapshotter
// can give containerd images.
func (n *Node) serveUsers(cfg cri.Config, u users, snapshotter bool) (err error) {
	if snapshotter && cfg.Puller == nil {
		cfg.Puller = puller{n, cfg.Containerd}
	}
	u.client, cfg.Log = n.client, n.log
	n.visitors = &u
	n.proxy, err = cri.New(u, u, cfg)
	return err
}

// restoreUsers takes up what users have shown to the node before this one, if the
// holder of its mounts has it, and has it held from now on, by the side of mounts.
func (n *Node) restoreUsers(held map[string]*os.File) {
	f := held[vaultName]
	if n.visitors == nil || n.keeping == nil {
		return
	}
	delete(held, vaultName)
	text, err := n.visitors.vault.open(f)
	if err == nil {
		err = n.visitors.shown.Restore(text)
	}
	if err != nil {
		n.log.Warn("credentials of pods are not taken up", "err", err)
	}
	if device := n.visitors.vault.descriptor(); device != nil {
		n.visitors.save() // what has been shown meanwhile
		n.keeping.accompany(vaultName, device, f != nil)
	}
}

// save keeps what users have shown for the node after this one.
func (u users) save() {
	if err := u.vault.write(u.shown.Snapshot()); err != nil {
		u.log.Warn("credentials of pods will end with this node", "err", err)
	}
}

// Repository implements cri.Judge.
func (u users) Repository(image string) (string, error) {
	name, err := origin.ParseName(image)
	return name.Repository, err
}

// MayPull implements cri.Judge. Nobody in particular has what the node has.
func (u users) MayPull(ctx context.Context, image string, a cri.Auth) error {
	keys := origin.Keychain(credential.One(credentialOf(a)))
	if a == (cri.Auth{}) {
		keys = u.own
	}
	return u.client.MayPull(ctx, image, keys)
}

// Remember implements cri.Memory.
func (u users) Remember(image string, a cri.Auth) bool {
	repository, err := u.Repository(image)
	registry, path, _ := strings.Cut(repository, "/")
	if err != nil || !u.shown.Add(registry, path, credentialOf(a)) {
		return false
	}
	u.save()
	return true
}

// Forget implements cri.Memory.
func (u users) Forget(image string, a cri.Auth) {
	if repository, err := u.Repository(image); err == nil {
		registry, path, _ := strings.Cut(repository, "/")
		u.shown.Remove(registry, path, credentialOf(a))
		u.save()
	}
}

func credentialOf(a cri.Auth) origin.Credential {
	return origin.Credential{
		Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, RegistryToken: a.RegistryToken,
		Source: "the pull of a pod",
	}
}

// A KeychainConfig names the sources of a node's own credentials.
type KeychainConfig struct {
	// DockerConfig is the folder of Docker's config.json. Default: where Docker's
	// own client looks.
	DockerConfig string

	// ProviderConfig and ProviderBin are kubelet's settings for credential
	// provider plugins: image-credential-provider-config and -bin-dir. Default:
	// none.
	ProviderConfig, ProviderBin string
}

// Keychain returns the node's own credentials: those of Docker, then those of
// kubelet's plugins.
func (c KeychainConfig) Keychain(cfg *Config) (origin.Keychain, error) {
	docker := DockerKeychain()
	if c.DockerConfig != "" {
		docker = origin.DockerConfig{Dir: c.DockerConfig}
	}
	if (c.ProviderConfig == "") != (c.ProviderBin == "") {
		return nil, fmt.Errorf("plugins for credentials need both a configuration and a folder of plugins, not only %q", c.ProviderConfig+c.ProviderBin)
	}
	if c.ProviderConfig == "" {
		return docker, nil
	}
	return credential.Chain{docker, &credential.Kubelet{Config: c.ProviderConfig, BinDir: c.ProviderBin, Log: cfg.Log}}, nil
}
