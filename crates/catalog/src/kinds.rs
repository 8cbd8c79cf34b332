//! The custom kinds that memory servers have announced.
//!
//! Servers announce the description of a kind and the capabilities of its blocks when they join. It stays for
//! as long as a live server serves the kind or a structure of the kind exists, so that one code never has two
//! meanings.

use crate::{Actor, Catalog, CatalogError, Reply};
use honeycomb_types::{AnnouncedKind, Capabilities, Kind, KindSpec, Router, ServerId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A set of custom kinds: a bit for each code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KindSet(u128);

impl KindSet {
    fn bit(kind: Kind) -> Option<u128> {
        match kind {
            Kind::Custom(custom) => Some(1 << (custom.code() - honeycomb_types::CustomKind::FIRST)),
            _ => None,
        }
    }

    /// The custom kinds of a list.
    pub(crate) fn of(kinds: &[AnnouncedKind]) -> KindSet {
        KindSet(
            kinds
                .iter()
                .filter_map(|kind| KindSet::bit(kind.spec.kind))
                .fold(0, |all, bit| all | bit),
        )
    }

    /// The union of both sets.
    pub(crate) fn and(self, other: KindSet) -> KindSet {
        KindSet(self.0 | other.0)
    }

    /// The intersection of both sets.
    pub(crate) fn in_common(self, other: KindSet) -> KindSet {
        KindSet(self.0 & other.0)
    }

    /// Whether the other set is a subset of this one.
    pub(crate) fn covers(self, other: KindSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether a server with this set serves structures of a kind. Every server serves the built-in ones.
    pub(crate) fn serves(self, kind: Kind) -> bool {
        KindSet::bit(kind).is_none_or(|bit| self.0 & bit != 0)
    }
}

/// The announced kinds, by code.
#[derive(Debug, Default)]
pub(crate) struct Kinds(BTreeMap<u8, Arc<AnnouncedKind>>);

impl Kinds {
    pub(crate) fn get(&self, kind: Kind) -> Option<&Arc<AnnouncedKind>> {
        self.0.get(&kind.code())
    }

    /// The name of an announced kind; empty for another one.
    pub(crate) fn name(&self, kind: Kind) -> Arc<str> {
        self.get(kind).map_or_else(Arc::default, |known| known.spec.name.as_str().into())
    }

    pub(crate) fn bytes(&self) -> usize {
        let operation = |name: &String| size_of::<honeycomb_types::OperationSpec>() + name.len();
        let one = |kind: &Arc<AnnouncedKind>| {
            let KindSpec { name, operations, .. } = &kind.spec;
            let operations: usize = operations.iter().map(|o| operation(&o.name)).sum();
            size_of::<AnnouncedKind>() + name.len() + operations
        };
        self.0.values().map(one).sum()
    }
}

impl Catalog {
    /// The router of a new structure, and the capabilities of its blocks if its kind is a custom one.
    pub(crate) fn router_of(&self, kind: Kind) -> Result<(Router, Capabilities), CatalogError> {
        if let Some(router) = kind.router() {
            return Ok((router, Capabilities::NONE));
        }
        let served = self.pool.servers().any(|(_, server)| server.kinds.serves(kind));
        let known = self.kinds.get(kind).filter(|_| served);
        let found = known.map(|known| (known.spec.router, known.capabilities));
        found.ok_or_else(|| match self.recovering() {
            true if matches!(kind, Kind::Custom(_)) => CatalogError::Recovering,
            // Also for extents, which are storage of a kv, and not a structure.
            _ => CatalogError::UnknownKind { kind },
        })
    }

    /// Whether a server may announce these kinds: each code at most once, and without a conflict with a known
    /// description. `gone` are the servers that it replaces.
    pub(crate) fn check_kinds(
        &self,
        kinds: &[AnnouncedKind],
        gone: &[ServerId],
    ) -> Result<(), CatalogError> {
        for (at, kind) in kinds.iter().enumerate() {
            let spec = &kind.spec;
            let code = spec.kind.code();
            let refuse = |why: String| Err(CatalogError::KindRefused { code, why: why.into() });
            if !matches!(spec.kind, Kind::Custom(_)) {
                return refuse("the code is not that of a custom kind".into());
            }
            if let Err(e) = kind.check() {
                return refuse(e.why);
            }
            let same = |other: &KindSpec| other.kind == spec.kind || other.name == spec.name;
            if kinds[..at].iter().any(|other| same(&other.spec)) {
                return refuse("its code or name is announced twice by one server".into());
            }
            let known = self.kinds.0.values().map(|known| &known.spec);
            let mut taken =
                known.filter(|other| other.name == spec.name && other.kind != spec.kind);
            if let Some(other) = taken.find(|other| self.is_used(other.kind, gone)) {
                let code = other.kind.code();
                return refuse(format!(
                    "'{}' is kind {code:#04x} in this cluster already",
                    spec.name
                ));
            }
            let known = self.kinds.get(spec.kind).filter(|known| ***known != *kind);
            if let Some(known) = known.filter(|known| self.is_used(known.spec.kind, gone)) {
                return refuse(format!(
                    "in this cluster it is '{}', with other operations, another router or other \
                     traits; servers that serve one kind have one description of it",
                    known.spec.name
                ));
            }
            if self.contradicts(kind, gone) {
                return refuse(
                    "structures of this kind in the cluster have another router or other traits"
                        .into(),
                );
            }
        }
        Ok(())
    }

    /// Whether recorded structures differ from an announcement. The descriptions are not on the log: after a
    /// restart of the controller, a server of another version could announce the kind before the servers
    /// with its structures are back, which would then be refused.
    fn contradicts(&self, kind: &AnnouncedKind, gone: &[ServerId]) -> bool {
        self.structures.iter().any(|(_, s)| {
            s.kind == kind.spec.kind
                && (s.router, s.capabilities) != (kind.spec.router, kind.capabilities)
                && s.blocks().all(|block| !gone.contains(&block.server()))
        })
    }

    /// Whether a live server serves a kind, or a structure of it exists, without counting these servers and
    /// their blocks.
    fn is_used(&self, kind: Kind, gone: &[ServerId]) -> bool {
        let stays = |server: ServerId| !gone.contains(&server);
        let mut servers = self.pool.servers();
        let mut structures = self.structures.iter();
        servers.any(|(id, server)| stays(id) && server.kinds.serves(kind))
            || structures.any(|(_, s)| s.kind == kind && s.blocks().all(|b| stays(b.server())))
    }

    /// Records the checked announcement of a server, and drops kinds that are no longer used.
    pub(crate) fn announce_kinds(&mut self, kinds: &[AnnouncedKind]) {
        let unused: Vec<u8> = self
            .kinds
            .0
            .values()
            .map(|known| known.spec.kind)
            .filter(|kind| !self.is_used(*kind, &[]))
            .map(Kind::code)
            .collect();
        for code in unused {
            self.kinds.0.remove(&code);
        }
        for kind in kinds {
            self.kinds.0.entry(kind.spec.kind.code()).or_insert_with(|| Arc::new(kind.clone()));
        }
        self.name_flushed_kinds();
    }

    /// The custom kinds, and how many live servers have each.
    pub(crate) fn list_kinds(&self, actor: Actor) -> Result<Reply, CatalogError> {
        if let Some(job) = actor.job {
            self.admit(actor, job)?;
        }
        let kinds = self.kinds.0.values().map(|known| {
            let serving = self.pool.servers().filter(|(_, s)| s.kinds.serves(known.spec.kind));
            (known.clone(), serving.count() as u32)
        });
        Ok(Reply::Kinds(kinds.collect()))
    }
}
