//! `CreateHierarchy`: all prefixes of an execution plan, or none.
//!
//! The stages, of which only the last changes anything: names, parents, order (refusing cycles
//! within the plan), places (refusing names that are taken), cycles by way of prefixes that exist,
//! rights, install, readers.

use crate::prefixes::Checked;
use crate::readers::{need_readers, need_reads};
use crate::tombstones::Cause;
use crate::{Actor, Catalog, CatalogError, Effect, PlanNode, PrefixOptions, Reply};
use hashbrown::{HashMap, HashSet};
use honeycomb_types::limits::{BATCH_MAX, FLUSH_DIRECTORY_MAX, PARENTS_MAX, PATH_DEPTH_MAX};
use honeycomb_types::{InvalidName, JobId, check_name};

/// A parent or a reader of a planned node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Parent {
    Planned(usize),
    Existing(u32),
}

/// A prefix in a search that climbs.
enum Visit {
    OnTheWay,
    Done,
}

struct Planned<'a> {
    parents: Vec<Parent>,
    options: Checked<'a>,
    /// The dead prefix that it replaces.
    place: Option<u32>,
    /// Its declared readers that have not committed; `None` when none is declared.
    readers: Option<Vec<Parent>>,
}

fn index_names<'a>(nodes: &[PlanNode<'a>]) -> Result<HashMap<&'a str, usize>, CatalogError> {
    let mut names = HashMap::with_capacity(nodes.len());
    for (i, node) in nodes.iter().enumerate() {
        check_name(node.name)?;
        if names.insert(node.name, i).is_some() {
            return Err(CatalogError::DuplicateNode { name: node.name.into() });
        }
    }
    Ok(names)
}

fn planned_parents(plan: &[Planned<'_>], i: usize) -> impl Iterator<Item = usize> {
    plan[i].parents.iter().filter_map(|parent| match *parent {
        Parent::Planned(k) => Some(k),
        Parent::Existing(_) => None,
    })
}

/// Parents before children. A cycle is reported by its members, each a parent of the next.
fn order(nodes: &[PlanNode<'_>], plan: &[Planned<'_>]) -> Result<Vec<usize>, CatalogError> {
    let mut missing: Vec<usize> = Vec::with_capacity(plan.len());
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); plan.len()];
    for i in 0..plan.len() {
        missing.push(planned_parents(plan, i).count());
        planned_parents(plan, i).for_each(|k| children[k].push(i));
    }
    let mut order: Vec<usize> = (0..plan.len()).filter(|&i| missing[i] == 0).collect();
    let mut done = 0;
    while done < order.len() {
        for &child in &children[order[done]] {
            missing[child] -= 1;
            if missing[child] == 0 {
                order.push(child);
            }
        }
        done += 1;
    }
    match (0..plan.len()).find(|&i| missing[i] > 0) {
        None => Ok(order),
        Some(stuck) => {
            let members = cycle_above(plan, &missing, stuck);
            let members = members.into_iter().map(|i| nodes[i].name.into()).collect();
            Err(CatalogError::Cycle { members })
        }
    }
}

/// The cycle found on the way up from a node that waits for its parents for ever. Every waiting node has a
/// waiting parent.
fn cycle_above(plan: &[Planned<'_>], missing: &[usize], stuck: usize) -> Vec<usize> {
    let (mut way, mut on_it) = (vec![stuck], vec![false; plan.len()]);
    loop {
        let last = way[way.len() - 1];
        on_it[last] = true;
        let parent = planned_parents(plan, last).find(|&k| missing[k] > 0);
        let parent = parent.expect("a node that waits has a parent that waits");
        if on_it[parent] {
            let first = way.iter().position(|&i| i == parent).expect("it is on the way");
            way.drain(..first);
            way.reverse();
            return way;
        }
        way.push(parent);
    }
}

/// The paths of nodes that outlive their job without an explicit place: by way of their first parents, as
/// the plan reads. Also returns a node whose path is too long for a flush, with the reason, unless a cycle is
/// the cause: a cycle is reported first.
fn own_paths<'a>(
    nodes: &[PlanNode<'a>],
    names: &HashMap<&str, usize>,
) -> (Vec<Option<String>>, Option<InvalidName>) {
    let mut refused = None;
    let mut path = |node: &PlanNode<'a>| {
        let (mut way, mut bytes) = (vec![node.name], node.name.len());
        let mut above = node.parents.first();
        let why = loop {
            let Some(parent) = above else {
                way.reverse();
                return way.join("/");
            };
            let name = parent.trim_start_matches('/');
            if !name.is_empty() {
                way.push(name);
                bytes += name.len() + 1;
            }
            if way.len() > PATH_DEPTH_MAX {
                break "its path has more than 64 levels; set flush_to";
            }
            if bytes > FLUSH_DIRECTORY_MAX {
                break "its path is longer than 1,024 bytes; set flush_to";
            }
            above = names.get(parent).and_then(|&k| nodes[k].parents.first());
        };
        refused = Some(InvalidName { name: node.name.into(), why });
        node.name.to_owned()
    };
    let own = |node: &PlanNode<'_>| node.options.is_placed() && node.options.flush_to.is_empty();
    (nodes.iter().map(|node| own(node).then(|| path(node))).collect(), refused)
}

fn at_own<'a>((node, own): (&PlanNode<'a>, &'a Option<String>)) -> PlanNode<'a> {
    let flush_to = own.as_deref().unwrap_or(node.options.flush_to);
    PlanNode { options: PrefixOptions { flush_to, ..node.options }, ..*node }
}

/// Refuses a plan that flushes two prefixes into one directory.
fn refuse_shared_flush(plan: &[Planned<'_>]) -> Result<(), CatalogError> {
    let mut seen = HashSet::new();
    for (path, directory) in plan.iter().filter_map(|node| node.options.flush.as_ref()) {
        if !seen.insert(directory) {
            return Err(CatalogError::FlushPathTaken { path: (*path).into() });
        }
    }
    Ok(())
}

impl Catalog {
    pub(crate) fn create_hierarchy(
        &mut self,
        actor: Actor,
        job: JobId,
        nodes: &[PlanNode<'_>],
        effects: &mut Vec<Effect>,
    ) -> Result<Reply, CatalogError> {
        let j = self.admit(actor, job)?;
        self.need_write(actor, "create a hierarchy", "")?;
        if nodes.len() > BATCH_MAX {
            let what = "nodes of one plan";
            return Err(CatalogError::LimitExceeded { what, limit: BATCH_MAX as u64 });
        }
        let names = index_names(nodes)?;
        let (own, too_long) = own_paths(nodes, &names);
        let placed: Vec<PlanNode<'_>>;
        let nodes = match own.iter().any(Option::is_some) {
            true => {
                placed = nodes.iter().zip(&own).map(at_own).collect();
                &placed[..]
            }
            false => nodes,
        };
        let planned = nodes.iter().zip(&own).map(|(node, own)| {
            self.plan_node(j, node, &names).map_err(|error| match own {
                Some(path) => self.or_exists(j, path, error),
                None => error,
            })
        });
        let mut plan = planned.collect::<Result<Vec<Planned<'_>>, CatalogError>>()?;
        refuse_shared_flush(&plan)?;
        let order = order(nodes, &plan)?;
        if let Some(too_long) = too_long {
            return Err(too_long.into());
        }
        self.choose_places(nodes, &mut plan, &order)?;
        self.refuse_cycles(nodes, &plan)?;
        self.refuse_foreign(actor, nodes, &plan, &order)?;
        let fresh = plan.iter().filter(|node| node.place.is_none()).count();
        self.need_room_for_prefixes(j, fresh)?;
        let edges = plan.iter().map(|node| node.parents.len()).sum();
        self.need_room_for_edges(j, edges, plan.iter().filter_map(|node| node.place))?;
        self.need_room_for_reads(&plan)?;

        // Other prefixes of the plan are new, and so is all below them.
        let mut places = plan.iter().filter_map(|node| node.place);
        let keeps_children = places.any(|place| self.dag.has_children(place));
        let mut installed = vec![0; plan.len()];
        for i in order {
            let parent = |parent: &Parent| match *parent {
                Parent::Existing(n) => n,
                Parent::Planned(k) => installed[k],
            };
            let parents: Vec<u32> = plan[i].parents.iter().map(parent).collect();
            let (place, options) = (plan[i].place, plan[i].options.clone());
            installed[i] = self.install(j, nodes[i].name, &parents, place, options);
        }
        let quotas = installed.iter().zip(&plan).map(|(&n, node)| (n, node.options.quota()));
        let fresh = self.bound_prefixes(j, &quotas.collect::<Vec<_>>());
        if keeps_children {
            self.count_below(j, &fresh);
        }
        self.collect_evicted();
        let ids = installed.iter().map(|&n| self.dag.nodes[n].id).collect();
        self.declare_planned(nodes, &plan, &installed, effects);
        Ok(Reply::Prefixes(ids))
    }

    /// Refuses a plan by which too many prefixes would name an existing prefix as a reader.
    fn need_room_for_reads(&self, plan: &[Planned<'_>]) -> Result<(), CatalogError> {
        let mut named: HashMap<Parent, usize> = HashMap::new();
        for &reader in plan.iter().flat_map(|node| node.readers.iter().flatten()) {
            let by_now = match reader {
                Parent::Existing(n) => self.readers.reads(n),
                Parent::Planned(_) => 0,
            };
            let by = named.entry(reader).or_insert(by_now);
            *by += 1;
            need_reads(*by)?;
        }
        Ok(())
    }

    /// Declares the readers of an installed plan. A prefix whose readers had all committed before ends at
    /// once.
    fn declare_planned(
        &mut self,
        nodes: &[PlanNode<'_>],
        plan: &[Planned<'_>],
        installed: &[u32],
        effects: &mut Vec<Effect>,
    ) {
        for (i, node) in plan.iter().enumerate() {
            let Some(readers) = &node.readers else { continue };
            let readers: Vec<u32> = readers
                .iter()
                .map(|reader| match *reader {
                    Parent::Existing(n) => n,
                    Parent::Planned(k) => installed[k],
                })
                .collect();
            self.readers.declare(installed[i], &readers);
            if readers.is_empty() {
                let last = nodes[i].readers.last().copied().unwrap_or_default();
                let cause = Cause::Read { reader: last.into() };
                self.end_prefix(installed[i], cause, self.now, effects);
            }
        }
    }

    fn plan_node<'a>(
        &self,
        j: u32,
        node: &PlanNode<'a>,
        names: &HashMap<&str, usize>,
    ) -> Result<Planned<'a>, CatalogError> {
        if node.parents.len() > PARENTS_MAX {
            let what = "parents of one prefix";
            return Err(CatalogError::LimitExceeded { what, limit: PARENTS_MAX as u64 });
        }
        let options = self.checked_options(j, node.options)?;
        let mut parents = Vec::with_capacity(node.parents.len().max(1));
        let mut seen = HashSet::new();
        let named = if node.parents.is_empty() { &[""] } else { node.parents };
        for &name in named {
            let parent = match names.get(name) {
                Some(&k) => Parent::Planned(k),
                None => Parent::Existing(self.find_parent(j, node.name, name)?),
            };
            if seen.insert(parent) {
                parents.push(parent);
            }
        }
        let readers = self.plan_readers(j, node, names)?;
        Ok(Planned { parents, options, place: None, readers })
    }

    fn plan_readers(
        &self,
        j: u32,
        node: &PlanNode<'_>,
        names: &HashMap<&str, usize>,
    ) -> Result<Option<Vec<Parent>>, CatalogError> {
        if node.readers.is_empty() {
            return Ok(None);
        }
        need_readers(node.readers.len())?;
        let (mut readers, mut seen) = (Vec::new(), HashSet::new());
        for &name in node.readers {
            let reader = match names.get(name) {
                Some(&k) => Some(Parent::Planned(k)),
                None => self.find_reader(j, node.name, name)?.map(Parent::Existing),
            };
            readers.extend(reader.filter(|&reader| seen.insert(reader)));
        }
        Ok(Some(readers))
    }

    /// Finds the dead prefixes that the plan replaces. A parent that replaces a dead prefix keeps the
    /// existing children.
    fn choose_places(
        &self,
        nodes: &[PlanNode<'_>],
        plan: &mut [Planned<'_>],
        order: &[usize],
    ) -> Result<(), CatalogError> {
        for &i in order {
            let mut place = None;
            for parent in &plan[i].parents {
                let existing = match *parent {
                    Parent::Existing(n) => Some(n),
                    Parent::Planned(k) => plan[k].place,
                };
                if let Some(parent) = existing {
                    let vacancy = self.vacancy(parent, nodes[i].name)?;
                    place = place.or(vacancy);
                }
            }
            plan[i].place = place;
        }
        Ok(())
    }

    /// Refuses a plan that puts a prefix below its own descendants. Such a cycle leads through the children
    /// of a replaced prefix; the plan alone has none.
    fn refuse_cycles(
        &mut self,
        nodes: &[PlanNode<'_>],
        plan: &[Planned<'_>],
    ) -> Result<(), CatalogError> {
        let mut places: HashMap<u32, usize> = HashMap::new();
        for (i, node) in plan.iter().enumerate() {
            if let Some(place) = node.place {
                assert!(places.insert(place, i).is_none(), "a place has one name");
            }
        }
        let occupied = plan.iter().filter_map(|node| node.place);
        let tops: Vec<u32> = occupied.filter(|&place| self.dag.has_children(place)).collect();
        // Climbs from the replaced prefixes by their future parents, and theirs; each is visited once.
        let mut visited: HashMap<Parent, Visit> = HashMap::new();
        for top in tops {
            let start = Parent::Planned(places[&top]);
            if visited.contains_key(&start) {
                continue;
            }
            visited.insert(start, Visit::OnTheWay);
            let mut way = vec![(start, self.parents_to_be(plan, &places, start).into_iter())];
            while let Some((at, parents)) = way.last_mut() {
                let Some(parent) = parents.next() else {
                    visited.insert(*at, Visit::Done);
                    way.pop();
                    continue;
                };
                self.dag.followed += 1;
                match visited.get(&parent) {
                    Some(Visit::Done) => {}
                    Some(Visit::OnTheWay) => {
                        let way: Vec<Parent> = way.iter().map(|(at, _)| *at).collect();
                        return Err(self.cycle_error(nodes, &way, parent));
                    }
                    None => {
                        visited.insert(parent, Visit::OnTheWay);
                        way.push((parent, self.parents_to_be(plan, &places, parent).into_iter()));
                    }
                }
            }
        }
        Ok(())
    }

    /// The parents of a prefix after the plan is installed.
    fn parents_to_be(
        &self,
        plan: &[Planned<'_>],
        places: &HashMap<u32, usize>,
        at: Parent,
    ) -> Vec<Parent> {
        let planned = |n: u32| places.get(&n).map_or(Parent::Existing(n), |&k| Parent::Planned(k));
        match at {
            Parent::Planned(i) => plan[i].parents.clone(),
            Parent::Existing(n) => self.dag.parents(n).map(planned).collect(),
        }
    }

    /// A way upwards whose last prefix would have one that is already on it as a parent.
    fn cycle_error(&self, nodes: &[PlanNode<'_>], way: &[Parent], parent: Parent) -> CatalogError {
        let name = |at: &Parent| -> Box<str> {
            match *at {
                Parent::Existing(n) => self.dag.nodes[n].name.clone(),
                Parent::Planned(i) => nodes[i].name.into(),
            }
        };
        let first = way.iter().position(|at| *at == parent).expect("the parent is on the way");
        let downwards = way[first + 1..].iter().rev();
        CatalogError::Cycle { members: [&parent].into_iter().chain(downwards).map(name).collect() }
    }

    /// Refuses a task's plan with a node that does not descend from the task's own prefix.
    fn refuse_foreign(
        &mut self,
        actor: Actor,
        nodes: &[PlanNode<'_>],
        plan: &[Planned<'_>],
        order: &[usize],
    ) -> Result<(), CatalogError> {
        if actor.task.is_none() {
            return Ok(());
        }
        let mut own = vec![false; plan.len()];
        for &i in order {
            own[i] = plan[i].parents.iter().any(|parent| match *parent {
                Parent::Planned(k) => own[k],
                Parent::Existing(n) => self.is_own(actor, n),
            });
            if !own[i] {
                return Err(CatalogError::PermissionDenied {
                    what: "create a prefix",
                    path: nodes[i].name.into(),
                    why: "a task's token can create only below its own prefix; name that prefix \
                        as a parent",
                });
            }
        }
        Ok(())
    }
}
