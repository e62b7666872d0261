package gateway

import "slices"

// ranking counts by key, and finds a key with the highest count. The zero value is ready to use.
type ranking[K comparable] struct {
	ranked map[K]rank
	// buckets are the keys by their count, starting at 1; the last one is not empty.
	buckets [][]K
}

// rank is a key's count, and its index in the bucket of that count.
type rank struct{ count, index int }

func (r *ranking[K]) count(key K) int { return r.ranked[key].count }

// add changes the count of the key by 1 or -1.
func (r *ranking[K]) add(key K, change int) {
	now := r.ranked[key].count + change
	r.remove(key)
	if now == 0 {
		return
	}
	if r.ranked == nil {
		r.ranked = map[K]rank{}
	}
	for len(r.buckets) < now {
		r.buckets = append(r.buckets, nil)
	}
	bucket := &r.buckets[now-1]
	r.ranked[key] = rank{count: now, index: len(*bucket)}
	*bucket = append(*bucket, key)
}

// remove removes the key from its bucket and moves the bucket's last key to its index.
func (r *ranking[K]) remove(key K) {
	was, ok := r.ranked[key]
	if !ok {
		return
	}
	delete(r.ranked, key)
	bucket := r.buckets[was.count-1]
	last := len(bucket) - 1
	if was.index != last {
		bucket[was.index] = bucket[last]
		r.ranked[bucket[last]] = was
	}
	r.buckets[was.count-1] = slices.Delete(bucket, last, last+1)
	for len(r.buckets) > 0 && len(r.buckets[len(r.buckets)-1]) == 0 {
		r.buckets = r.buckets[:len(r.buckets)-1]
	}
}

// largest returns a key with the highest count, and that count; 0 if there is no key.
func (r *ranking[K]) largest() (key K, count int) {
	if count = len(r.buckets); count == 0 {
		return key, 0
	}
	bucket := r.buckets[count-1]
	return bucket[len(bucket)-1], count
}
